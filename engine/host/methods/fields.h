// Describes the parameters of a method once: name, range and meaning of each field. Its default is
// the member's initial value. Checks, offers and what requests and deployments may set follow from
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/settings.h"

namespace tandem {

// A refused value, and what is allowed.
struct Refusal {
  std::string field, value, allowed;
};

struct Field {
  enum class Kind : uint8_t { kSwitch, kInteger, kNumber, kChoice, kText, kTexts };
  enum class By : uint8_t { kBoth, kRequest, kDeployment };  // who may set it

  std::string name;
  Kind kind = Kind::kSwitch;
  double min = 0, max = 0;  // of kInteger and kNumber, inclusive
  std::vector<std::string> choices;
  std::string meaning;
  By by = By::kBoth;

  std::string allowed() const;  // "[0, 2]", "true, false"
  // Set if the value has another kind or is out of range. Integers are valid numbers.
  std::optional<Refusal> check(const SettingValue& value) const;
};

// The shortest decimal that parses as this float.
double as_written(float v);
// The nearest float; infinity beyond the range of floats.
float to_float(double v);

// T, or T of std::optional<T>.
template <class T>
struct Unwrapped {
  using Type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};

// Fields of a parameter struct P, each bound to a member of P or of its base.
template <class P>
class Fields {
 public:
  struct Range {
    double min, max;
  };
  template <class T>
  using Plain = typename Unwrapped<T>::Type;
  template <class E>
  using Choices = std::vector<std::pair<std::string, E>>;
  using By = Field::By;

  // A bool, a string or a list of strings, or an optional one, which has no default.
  template <class T, class B>
  Fields&& add(std::string name, T B::* member, std::string meaning, By by = By::kBoth) && {
    using V = Plain<T>;
    Field field;
    field.kind = std::is_same_v<V, bool>          ? Field::Kind::kSwitch
                 : std::is_same_v<V, std::string> ? Field::Kind::kText
                                                  : Field::Kind::kTexts;
    bind(
        std::move(field), std::move(name), member, std::move(meaning), by,
        [](const SettingValue& v) { return std::get<V>(v); },
        [](const V& v) { return SettingValue(v); });
    return std::move(*this);
  }

  // A number, or an optional one.
  template <class T, class B>
  Fields&& add(std::string name, T B::* member, Range range, std::string meaning,
               By by = By::kBoth) && {
    using V = Plain<T>;
    static_assert(std::is_same_v<V, int> || std::is_same_v<V, float>);
    Field field;
    field.kind = std::is_same_v<V, int> ? Field::Kind::kInteger : Field::Kind::kNumber;
    field.min = range.min;
    field.max = range.max;
    bind(std::move(field), std::move(name), member, std::move(meaning), by, &number_of<V>,
         &setting_of<V>);
    return std::move(*this);
  }

  // One of several values, by their names in the protos.
  template <class E, class B>
  Fields&& add(std::string name, E B::* member, const Choices<Plain<E>>& choices,
               std::string meaning, By by = By::kBoth) && {
    Field field;
    field.kind = Field::Kind::kChoice;
    for (const auto& [text, value] : choices) field.choices.push_back(text);
    const auto from = [choices](const SettingValue& v) {
      for (const auto& [text, value] : choices) {
        if (text == std::get<std::string>(v)) return value;
      }
      return choices.front().second;
    };
    const auto to = [choices](const Plain<E>& v) {
      for (const auto& [text, value] : choices) {
        if (value == v) return SettingValue(text);
      }
      return SettingValue(choices.front().first);
    };
    bind(std::move(field), std::move(name), member, std::move(meaning), by, from, to);
    return std::move(*this);
  }

  std::vector<Field> described() const {
    std::vector<Field> out;
    for (const Bound& b : bound_) out.push_back(b.field);
    return out;
  }
  // REQUIRES: the settings have been checked.
  void apply(const Settings& settings, P* to) const {
    for (const Bound& b : bound_) {
      if (const SettingValue* v = find_setting(settings, b.field.name)) b.set(*v, to);
    }
  }
  // The value of every field of `of` that is set.
  Settings read(const P& of) const {
    Settings out;
    for (const Bound& b : bound_) {
      if (auto value = b.get(of)) out.push_back({b.field.name, *std::move(value)});
    }
    return out;
  }

 private:
  struct Bound {
    Field field;
    std::function<void(const SettingValue&, P*)> set;
    std::function<std::optional<SettingValue>(const P&)> get;
  };

  template <class V>
  static V number_of(const SettingValue& value) {
    const auto* whole = std::get_if<int64_t>(&value);
    if constexpr (std::is_same_v<V, int>) {
      return static_cast<int>(*whole);
    } else {
      return to_float(whole ? static_cast<double>(*whole) : std::get<double>(value));
    }
  }
  template <class V>
  static SettingValue setting_of(const V& v) {
    if constexpr (std::is_same_v<V, int>) {
      return SettingValue(int64_t{v});
    } else {
      return SettingValue(as_written(v));
    }
  }

  template <class T, class B, class From, class To>
  void bind(Field field, std::string name, T B::* member, std::string meaning, By by,
            const From& from, const To& to) {
    Bound& b = bound_.emplace_back();
    b.field = std::move(field);
    b.field.name = std::move(name);
    b.field.meaning = std::move(meaning);
    b.field.by = by;
    b.set = [member, from](const SettingValue& v, P* p) { p->*member = from(v); };
    b.get = [member, to](const P& p) -> std::optional<SettingValue> {
      if constexpr (std::is_same_v<T, Plain<T>>) {
        return to(p.*member);
      } else {
        if (!(p.*member)) return std::nullopt;
        return to(*(p.*member));
      }
    };
  }

  std::vector<Bound> bound_;
};

}  // namespace tandem
