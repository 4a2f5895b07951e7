// StreamDecoder: its pieces are valid UTF-8 and concatenate to the whole decode.
#include "engine/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "engine/text/utf8.h"
#include "tests/engine/text/test_data.h"

namespace tandem {
namespace {

using nlohmann::json;
using Ids = std::vector<Token>;

// Text of `ids`, decoded token by token with each piece checked. pieces: number of non-empty
// pieces.
std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids, bool skip,
                   const Ids& context = {}, int* pieces = nullptr) {
  StreamDecoder decoder(tokenizer, skip, context);
  std::string text;
  for (size_t i = 0; i <= ids.size(); ++i) {
    std::string piece;
    if (i < ids.size()) {
      decoder.push(ids[i], piece);
    } else {
      decoder.finish(piece);
    }
    EXPECT_EQ(valid_utf8_prefix(piece), piece.size()) << "piece " << i;
    if (pieces != nullptr && !piece.empty()) ++*pieces;
    text += piece;
  }
  return text;
}

// Decodes without clean-up of spaces, as streams do (stream_decoder.h).
std::shared_ptr<const Tokenizer> plain_tokenizer(const std::string& name) {
  if (name != "bert") return test::golden_tokenizer(name);
  test::TemporaryModel model;
  const std::string source = test::data_path("tokenizers/" + name + "/");
  json config = test::read_json(source + "tokenizer_config.json");
  config["clean_up_tokenization_spaces"] = false;
  model.write("tokenizer.json", test::read_text(source + "tokenizer.json"))
      .write("tokenizer_config.json", config.dump());
  return *Tokenizer::load(model.path());
}

class StreamGoldens : public ::testing::TestWithParam<std::string> {
 protected:
  StreamGoldens() : tokenizer_(plain_tokenizer(GetParam())) {
    const json goldens =
        test::read_json(test::data_path("tokenizers/" + GetParam() + "/goldens.json"));
    const std::vector<std::string> texts =
        test::read_json(test::data_path("tokenizers/texts.json"));
    for (const std::string& text : texts) sequences_.push_back(*tokenizer_->encode(text, true));
    for (const json& ids : goldens["ids"]) sequences_.push_back(ids[0].get<Ids>());
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Ids> sequences_;
};

TEST_P(StreamGoldens, EqualsTheWholeDecode) {
  ASSERT_NE(tokenizer_->pieces().kind(), PieceKind::kOpaque);
  ASSERT_EQ(sequences_.size(), 620u);
  for (size_t s = 0; s < sequences_.size(); s += test::kGoldenStep) {
    const Ids& ids = sequences_[s];
    SCOPED_TRACE(json(ids).dump());
    for (const bool skip : {false, true}) {
      ASSERT_EQ(stream(tokenizer_, ids, skip), *tokenizer_->decode(ids, skip)) << skip;
    }
  }
}

TEST_P(StreamGoldens, TextComesEarly) {
  const Ids ids = *tokenizer_->encode("The quick brown fox jumps over the lazy dog", false);
  int pieces = 0;
  stream(tokenizer_, ids, true, {}, &pieces);
  EXPECT_GE(pieces, static_cast<int>(ids.size()) - 1);
}

TEST_P(StreamGoldens, ContextIsTakenOff) {
  for (size_t s = 0; s < sequences_.size(); s += 7 * test::kGoldenStep) {
    const Ids& ids = sequences_[s];
    SCOPED_TRACE(json(ids).dump());
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      const Ids context(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut));
      const Ids rest(ids.begin() + static_cast<ptrdiff_t>(cut), ids.end());
      const std::string before = *tokenizer_->decode(context, false);
      const std::string all = *tokenizer_->decode(ids, false);
      // Texts differ only at a character that the cut divides.
      if (all.substr(0, before.size()) != before) continue;
      if (before.ends_with(kReplacementCharacter)) continue;
      ASSERT_EQ(stream(tokenizer_, rest, false, context), all.substr(before.size())) << cut;
    }
  }
}

TEST_P(StreamGoldens, RandomIdsOfAnyKind) {
  std::mt19937 random(11);
  std::uniform_int_distribution<Token> any(0, tokenizer_->vocab_size() - 1);
  for (int n = 0; n < test::cases(500); ++n) {
    Ids ids(1 + random() % 30);
    for (Token& id : ids) {
      id = random() % 3 == 0 ? static_cast<Token>(random() % 270) % tokenizer_->vocab_size()
                             : any(random);
    }
    SCOPED_TRACE(json(ids).dump());
    for (const bool skip : {false, true}) {
      ASSERT_EQ(stream(tokenizer_, ids, skip), *tokenizer_->decode(ids, skip));
    }
  }
}

TEST_P(StreamGoldens, TokensOutsideTheVocabularyAddNothing) {
  const Ids ids = *tokenizer_->encode("hello there", false);
  Ids noisy;
  for (const Token id : ids) {
    for (const Token bad : {-1, tokenizer_->vocab_size(), INT32_MAX}) noisy.push_back(bad);
    noisy.push_back(id);
  }
  EXPECT_EQ(stream(tokenizer_, noisy, false), *tokenizer_->decode(ids, false));
}

INSTANTIATE_TEST_SUITE_P(All, StreamGoldens, ::testing::ValuesIn(test::tokenizer_names()),
                         [](const auto& name) { return name.param; });

// For such vocabularies the library decodes windows, whose text may change with later tokens.
TEST(StreamDecoder, PiecesOfOtherDecodersAreUtf8Too) {
  json vocab;
  for (const char* token : {"<0xE6>", "<0x97>", "<0xA5>", "<0xC3>", "<0xA9>", "a", " "}) {
    vocab[token] = vocab.size();
  }
  const json file = {{"version", "1.0"},
                     {"added_tokens", json::array()},
                     {"decoder",
                      {{"type", "Sequence"},
                       {"decoders",
                        {{{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 5}}}}}},
                     {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "a"}}}};
  test::TemporaryModel model;
  model.write("tokenizer.json", file.dump());
  const auto tokenizer = Tokenizer::load(model.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ASSERT_EQ((*tokenizer)->pieces().kind(), PieceKind::kOpaque);
  std::mt19937 random(3);
  for (int n = 0; n < 2000; ++n) {
    Ids ids(1 + random() % 40);
    for (Token& id : ids) id = static_cast<Token>(random() % vocab.size());
    SCOPED_TRACE(json(ids).dump());
    stream(*tokenizer, ids, false);
    if (HasFailure()) return;
  }
}

TEST(StreamDecoder, HoldsAnUnfinishedCharacter) {
  const auto tokenizer = test::golden_tokenizer("gpt2");
  // U+1FAE0 is in no training text: one token for each of its four bytes.
  const Ids ids = *tokenizer->encode("🫠", false);
  ASSERT_GE(ids.size(), 2u);
  StreamDecoder decoder(tokenizer, true);
  std::string text;
  for (size_t i = 0; i + 1 < ids.size(); ++i) decoder.push(ids[i], text);
  EXPECT_EQ(text, "");
  decoder.push(ids.back(), text);
  EXPECT_EQ(text, "🫠");

  StreamDecoder unfinished(tokenizer, true);
  std::string replaced;
  unfinished.push(ids[0], replaced);
  EXPECT_EQ(replaced, "");
  unfinished.finish(replaced);
  EXPECT_EQ(replaced, kReplacementCharacter);
}

TEST(StreamDecoder, ByteRunsAreTextOnlyAsAWhole) {
  const auto tokenizer = test::golden_tokenizer("llama2");
  const auto byte = [&](int value) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", value);
    return *tokenizer->token_id(name);
  };
  const Token word = *tokenizer->token_id("▁the");
  StreamDecoder decoder(tokenizer, true);
  std::string text;
  for (const int value : {0xE4, 0xBD, 0xA0}) decoder.push(byte(value), text);
  EXPECT_EQ(text, "");  // a bad byte could still follow and spoil it
  decoder.push(word, text);
  EXPECT_EQ(text, "你 the");
  text.clear();
  for (const int value : {0xE4, 0xBD, 0xA0, 0xFF}) decoder.push(byte(value), text);
  EXPECT_EQ(text, "\uFFFD\uFFFD\uFFFD\uFFFD");
  decoder.push(byte(0x41), text);  // spoiled once, spoiled to the end of the run
  EXPECT_EQ(text, "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST(StreamDecoder, LeadingSpaceDependsOnTheContext) {
  const auto tokenizer = test::golden_tokenizer("llama2");
  const Ids word = {*tokenizer->token_id("▁the")};
  EXPECT_EQ(stream(tokenizer, word, true), "the");
  EXPECT_EQ(stream(tokenizer, word, true, word), " the");
}

TEST(StreamDecoder, ACharacterBegunInThePromptIsFinished) {
  for (const std::string name : {"gpt2", "llama2"}) {
    const auto tokenizer = test::golden_tokenizer(name);
    const Ids ids = *tokenizer->encode("x🫠y", false);
    size_t cut = 0;  // behind the first token of the character
    while (!tokenizer->decode(absl::MakeConstSpan(ids).first(cut), true)->ends_with("\uFFFD"))
      ++cut;
    const Ids context(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut));
    const Ids rest(ids.begin() + static_cast<ptrdiff_t>(cut), ids.end());
    EXPECT_EQ(stream(tokenizer, rest, true, context), "🫠y") << name;
    EXPECT_EQ(stream(tokenizer, {}, true, context), "") << name;
  }
}

// The library decodes what the table does not cover.
TEST(StreamDecoder, OtherDecoders) {
  const json base = {{"version", "1.0"}, {"added_tokens", json::array()}};
  const auto load = [&](json decoder) {
    json file = base;
    json vocab = {{"<unk>", 0}, {"hel</w>", 1}, {"lo</w>", 2}, {"x", 3}, {"é</w>", 4}};
    file["model"] = {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "<unk>"}};
    file["decoder"] = std::move(decoder);
    test::TemporaryModel model;
    model.write("tokenizer.json", file.dump());
    return *Tokenizer::load(model.path());
  };
  const auto bpe = load({{"type", "BPEDecoder"}, {"suffix", "</w>"}});
  const auto joined = load(nullptr);
  EXPECT_EQ(bpe->pieces().kind(), PieceKind::kOpaque);
  EXPECT_EQ(joined->pieces().kind(), PieceKind::kPieces);
  std::mt19937 random(5);
  for (int n = 0; n < 200; ++n) {
    Ids ids(1 + random() % 100);
    for (Token& id : ids) id = static_cast<Token>(random() % 5);
    EXPECT_EQ(stream(bpe, ids, false), *bpe->decode(ids, false));
    EXPECT_EQ(stream(joined, ids, false), *joined->decode(ids, false));
  }
}

// Checks growth, not time: a token of a long stream costs as much as one of a short stream. Prints
// the measurements.
TEST(StreamDecoder, CostIsLinear) {
  for (const std::string& name : test::tokenizer_names()) {
    const auto tokenizer = test::golden_tokenizer(name);
    const Ids ids =
        *tokenizer->encode("def f(x):\n    return x + 1  # über 漢字 and so on, well\n", false);
    const auto nanoseconds = [&](int repeats) {
      double best = 1e18;
      for (int attempt = 0; attempt < 3; ++attempt) {
        StreamDecoder decoder(tokenizer, true);
        std::string text;
        size_t total = 0;
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < repeats; ++i) {
          for (const Token id : ids) {
            text.clear();
            decoder.push(id, text);
            total += text.size();
          }
        }
        const std::chrono::duration<double, std::nano> time =
            std::chrono::steady_clock::now() - begin;
        EXPECT_GT(total, 0u);
        best = std::min(best, time.count() / (repeats * static_cast<double>(ids.size())));
      }
      return best;
    };
    const double small = nanoseconds(100);
    const double large = nanoseconds(5000);
    std::printf("%-12s %.3f us per token\n", name.c_str(), large / 1000);
    RecordProperty("ns_per_token_" + name, static_cast<int>(large));
    EXPECT_LT(large, 10 * small + 100) << name;
  }
}

// Marked special tokens are text although others are skipped.
TEST(StreamDecoder, ShowsChosenSpecialTokens) {
  for (const std::string& name : test::tokenizer_names()) {
    const auto tokenizer = test::golden_tokenizer(name);
    std::vector<Token> special;
    for (Token t = 0; t < tokenizer->vocab_size() && special.size() < 2; ++t) {
      if (tokenizer->is_special(t)) special.push_back(t);
    }
    if (special.size() < 2) continue;
    StreamDecoder decoder(tokenizer, true, {}, {special[0]});
    std::string text;
    const Ids hello = *tokenizer->encode("Hello", false);
    for (const Token t : hello) decoder.push(t, text);
    decoder.push(special[1], text);
    decoder.push(special[0], text);
    const std::string before = text;
    for (const Token t : hello) decoder.push(t, text);
    decoder.finish(text);
    EXPECT_NE(before.find(tokenizer->token_bytes(special[0])), std::string::npos) << name;
    EXPECT_EQ(text.find(tokenizer->token_bytes(special[1])), std::string::npos) << name;
    EXPECT_GT(text.size(), before.size()) << name;
  }
}

}  // namespace
}  // namespace tandem
