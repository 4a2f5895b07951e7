// A constant table with one row for each enumerator, in place of a switch per direction.
//
//   constexpr auto kNames = enum_table<Role>({{Role::kLarge, "large"}, {Role::kSmall, "small"}});
//   kNames[Role::kSmall]      // "small"
//   kNames.find("large")      // Role::kLarge
//
// The values may be names or the enumerators of another type. Rows are in the order of the
// enumerators, which start at 0 without gaps. A missing, repeated or misplaced row does not
// compile.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace tandem {
namespace internal {

// Whether V has a name. Clang prints "[V = tandem::Role::kSmall]" or "[V = (tandem::Role)7]".
template <auto V>
consteval bool is_enumerator() {
  const std::string_view name = __PRETTY_FUNCTION__;
  return name[name.find("V = ") + 4] != '(';
}

void enum_table_rows_are_in_order();  // never defined: an error when a constant expression calls it

}  // namespace internal

template <class Enum, class Value, size_t N>
class EnumTable {
 public:
  consteval explicit EnumTable(const std::pair<Enum, Value> (&rows)[N]) {
    static_assert(!internal::is_enumerator<static_cast<Enum>(N)>(), "the table lacks a row");
    for (size_t i = 0; i < N; ++i) {
      if (rows[i].first != static_cast<Enum>(i)) internal::enum_table_rows_are_in_order();
      values_[i] = rows[i].second;
    }
  }

  // REQUIRES: `key` is an enumerator.
  constexpr Value operator[](Enum key) const { return values_[static_cast<size_t>(key)]; }

  // The first enumerator with this value.
  template <class Like>
  constexpr std::optional<Enum> find(const Like& value) const {
    for (size_t i = 0; i < N; ++i) {
      if (values_[i] == value) return static_cast<Enum>(i);
    }
    return std::nullopt;
  }

  static constexpr size_t size() { return N; }
  constexpr const std::array<Value, N>& values() const { return values_; }

 private:
  std::array<Value, N> values_{};
};

// A table of names.
template <class Enum, size_t N>
consteval EnumTable<Enum, std::string_view, N> enum_names(
    const std::pair<Enum, std::string_view> (&rows)[N]) {
  return EnumTable<Enum, std::string_view, N>(rows);
}

// A table of values of another type.
template <class Enum, class Value, size_t N>
consteval EnumTable<Enum, Value, N> enum_table(const std::pair<Enum, Value> (&rows)[N]) {
  return EnumTable<Enum, Value, N>(rows);
}

}  // namespace tandem
