#include "kernels/gaussian.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/gaussian/box_muller.h"
#include "kernels/gaussian_tensor.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/gaussian/noise.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// The slow twin: the header's layout, with the keystream from one block at a time and libm in float64.
struct Block {
  std::array<uint64_t, 8> words;
};

Block block_of(const ChaChaKey& key, uint32_t stream, uint64_t block) {
  std::array<uint8_t, 12> nonce;
  for (int i = 0; i < 4; ++i) {
    nonce[static_cast<size_t>(i)] = static_cast<uint8_t>(stream >> (8 * i));
  }
  for (int i = 0; i < 8; ++i) {
    nonce[static_cast<size_t>(4 + i)] = static_cast<uint8_t>((block >> 32) >> (8 * i));
  }
  std::array<uint8_t, 64> bytes;
  chacha20_keystream(key, nonce, static_cast<uint32_t>(block), bytes);
  Block out{};
  for (size_t i = 0; i < 64; ++i) {
    out.words[i / 8] |= static_cast<uint64_t>(bytes[i]) << (8 * (i % 8));
  }
  return out;
}

struct Pair {
  double cosine, sine, radius;
};

Pair pair_of(uint64_t radius_bits, uint64_t angle_bits) {
  // u = (bits + 1/2)·2^-64; 1 − u is the same expression of the complement.
  const auto uniform = [](uint64_t bits) { return (static_cast<long double>(bits) + 0.5L) * 0x1p-64L; };
  const long double log_u = radius_bits >> 63 ? std::log1p(-uniform(~radius_bits)) : std::log(uniform(radius_bits));
  const double radius = std::sqrt(static_cast<double>(-2 * log_u));
  // The top two bits turn by quarters; the rest is an angle around the middle of the quarter, here 0.
  const double quarter = static_cast<double>(angle_bits >> 62);
  const double within =
      static_cast<double>((static_cast<long double>(angle_bits & ((uint64_t{1} << 62) - 1)) + 0.5L) * 0x1p-62L - 0.5L);
  const double angle = (quarter + within) * std::numbers::pi / 2;
  return {radius * std::cos(angle), radius * std::sin(angle), radius};
}

// ---------------------------------------------------------------------------------------------------------------------
// Keystream

struct KeystreamCase {
  const char* name;
  const char* nonce;
  uint32_t block;
  std::string plaintext;  // `expected` is its ciphertext; if empty, the keystream itself
  const char* expected;
};

class Rfc8439 : public testing::TestWithParam<KeystreamCase> {};

TEST_P(Rfc8439, Keystream) {
  const KeystreamCase& c = GetParam();
  std::vector<uint8_t> expected = from_hex(c.expected);
  for (size_t i = 0; i < c.plaintext.size(); ++i) {
    expected[i] ^= static_cast<uint8_t>(c.plaintext[i]);
  }
  std::array<uint8_t, 12> nonce;
  std::ranges::copy(from_hex(c.nonce), nonce.begin());
  std::vector<uint8_t> out(expected.size(), 0xff);
  chacha20_keystream(counting_key(), nonce, c.block, out);
  EXPECT_EQ(out, expected);
}

INSTANTIATE_TEST_SUITE_P(
    , Rfc8439,
    testing::Values(KeystreamCase{"Section2_3_2", "000000090000004a00000000", 1, "",
                                  "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
                                  "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"},
                    KeystreamCase{
                        "Section2_4_2", "000000000000004a00000000", 1,
                        "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
                        "sunscreen would be it.",
                        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b"
                        "f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8"
                        "07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
                        "5af90bbf74a35be6b40b8eedf2785e42874d"}),
    [](const auto& test) { return test.param.name; });

TEST(ChaCha20, CounterMayReachItsEndAndNotComeRound) {
  std::array<uint8_t, 12> nonce{};
  std::vector<uint8_t> out(64);
  EXPECT_NO_THROW(chacha20_keystream(counting_key(), nonce, 0xffffffffu, out));
  out.resize(65);
  EXPECT_THROW(chacha20_keystream(counting_key(), nonce, 0xffffffffu, out), std::invalid_argument);
}

// ---------------------------------------------------------------------------------------------------------------------
// Elements as a pure function of (key, parameter, index)

struct Range {
  const char* name;
  uint32_t parameter;
  uint64_t first;
  size_t count;
};

const auto kRanges = testing::Values(Range{"Nothing", 3, 5, 0},                                        //
                                     Range{"OneElement", 3, 5, 1},                                     //
                                     Range{"WithinABlock", 3, 9, 5},                                   //
                                     Range{"WholeBlocks", 3, 16, 64},                                  //
                                     Range{"OddEnds", 0, 13, 333},                                     //
                                     Range{"SeveralChunks", 7, 1021, 5000},                            //
                                     Range{"LastParameter", 0xffffffffu, 1, 40},                       //
                                     Range{"AcrossTheCountersEnd", 5, (uint64_t{8} << 32) - 21, 50},   //
                                     Range{"AcrossASecondEnd", 5, (uint64_t{16} << 32) - 3000, 5000},  //
                                     Range{"LastElement", 5, std::numeric_limits<uint64_t>::max() - 20, 21});

class GaussianRange : public testing::TestWithParam<Range> {};

TEST_P(GaussianRange, EqualsTheSlowTwin) {
  const Range& r = GetParam();
  const std::vector<float> z = gaussian(r.parameter, r.first, r.count);
  for (size_t i = 0; i < r.count; ++i) {
    const uint64_t element = r.first + i;
    const Block block = block_of(counting_key(), r.parameter, element / 8);
    const size_t k = element % 8 / 2;
    const Pair pair = pair_of(block.words[2 * k], block.words[2 * k + 1]);
    // The radius errs by a few units in the last place (conversion, logarithm, root), sine and cosine by two of 1.
    EXPECT_NEAR(z[i], element % 2 == 0 ? pair.cosine : pair.sine, 6 * 0x1p-24 * pair.radius) << "element " << element;
  }
}

TEST_P(GaussianRange, IsBitwiseASliceOfEveryLargerRange) {
  const Range& r = GetParam();
  const std::vector<float> z = gaussian(r.parameter, r.first, r.count);
  const uint64_t before = std::min<uint64_t>(r.first, 1234);
  const std::vector<float> larger = gaussian(r.parameter, r.first - before, r.count + before);
  for (size_t i = 0; i < r.count; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(z[i]), std::bit_cast<uint32_t>(larger[before + i])) << "element " << r.first + i;
  }
  for (size_t i = 0; i < r.count; i += 7) {
    EXPECT_EQ(gaussian(r.parameter, r.first + i, 1)[0], z[i]);
  }
}

// On every device.
TEST_P(GaussianRange, TensorsGetTheBitsThatSpansGet) {
  const Range& r = GetParam();
  std::vector<float> expected(r.count, 1.25f);
  add_gaussian(counting_key(), r.parameter, r.first, 0.7f, expected);
  const at::Tensor out = at::full({static_cast<int64_t>(r.count)}, 1.25, backend::device());
  add_gaussian(counting_key(), r.parameter, r.first, 0.7f, out);
  EXPECT_TRUE(oracle::same_bits(out, at::tensor(expected)));
}

TEST_P(GaussianRange, UniformWordsAreTheKeystream) {
  const Range& r = GetParam();
  std::vector<uint64_t> words(r.count);
  uniform_words(counting_key(), r.parameter, r.first, words);
  for (size_t i = 0; i < r.count; ++i) {
    EXPECT_EQ(words[i], block_of(counting_key(), r.parameter, (r.first + i) / 8).words[(r.first + i) % 8]);
  }
}

INSTANTIATE_TEST_SUITE_P(, GaussianRange, kRanges, [](const auto& test) { return test.param.name; });

// A change of any bit would make resumed runs and other machines disagree.
TEST(Gaussian, GoldenBits) {
  const std::vector<float> z = gaussian(1, 0, 8);
  const std::array<uint32_t, 8> golden = {0xbfd99569, 0xbe8af550, 0xbd212f3d, 0x3ec53e4a,
                                          0xbd8448ad, 0x4001c1d8, 0xbee9fa61, 0xbcbd16a4};
  for (size_t i = 0; i < z.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(z[i]), golden[i]) << std::hex << std::bit_cast<uint32_t>(z[i]);
  }
}

struct GoldenCase {
  const char* name;
  uint8_t key;  // its first byte; each further byte is one more
  uint32_t parameter;
  uint64_t first;
  float scale, before;
  const char* sha256;  // of 4096 float32, little endian
};

std::string sha256_of(const at::Tensor& x) {
  std::array<unsigned char, 32> digest;
  unsigned bytes = 0;
  EXPECT_EQ(EVP_Digest(x.const_data_ptr(), x.nbytes(), digest.data(), &bytes, EVP_sha256(), nullptr), 1);
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

class GoldenNoise : public testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenNoise, HasTheSameBitsOnEveryMachineAndDevice) {
  const GoldenCase& c = GetParam();
  const at::Tensor out = at::full({4096}, c.before, backend::device());
  add_gaussian(counting_key(c.key), c.parameter, c.first, c.scale, out);
  EXPECT_EQ(sha256_of(out.cpu()), c.sha256);
}

INSTANTIATE_TEST_SUITE_P(
    , GoldenNoise,
    testing::Values(GoldenCase{"FromTheStart", 0, 1, 0, 1, 0,
                               "b50a6823b0f78b065373d3d87870453e012a8f838d232ea32ef1c572a60ba35d"},
                    GoldenCase{"AcrossTheCountersEnd", 0, 9, (uint64_t{8} << 32) - 2045, 0.7f, 1.25f,
                               "47e65cc9032610e44b0df863f1a5a52f83a67cad351b86761b8667eb16acb1cb"},
                    GoldenCase{"LastParameterOfAnotherKey", 101, 0xffffffffu, 3, 1, 0,
                               "dfaab7760578f08a8537b6e2242bc2712c0a3831e7c326c018a3257f68c268be"},
                    GoldenCase{"FarAndSmall", 101, 2, (uint64_t{1} << 60) + 5, 1e-3f, -2,
                               "2f55195793734a56e2c108d781a97a8f49b3d1544bc816c1b03704abff6e4a7c"}),
    [](const auto& test) { return test.param.name; });

TEST(Gaussian, AddsScaledToWhatIsThere) {
  const std::vector<float> z = gaussian(1, 3, 100);
  std::vector<float> out(100, 2.5f);
  add_gaussian(counting_key(), 1, 3, 0.75f, out);
  for (size_t i = 0; i < out.size(); ++i) {
    const float scaled = 0.75f * z[i];
    EXPECT_EQ(out[i], 2.5f + scaled);
  }
}

TEST(Gaussian, PartsOfManyParametersAreWhatEachIsAlone) {
  // More than a device takes at once, of unlike extents, an empty one and a long one among them, and gaps between.
  constexpr int kParts = 150;
  std::vector<GaussianPart> parts;
  int64_t end = 0;
  for (int i = 0; i < kParts; ++i) {
    const int64_t count = i == 70 ? 0 : i == 5 ? 9000 : 1 + i * 7 % 40;
    parts.push_back(
        {.parameter = static_cast<uint32_t>(i), .first = static_cast<uint64_t>(3 * i), .offset = end, .count = count});
    end += count + i % 3;
  }
  const at::Tensor expected = at::full({end}, 2.5, backend::device()), out = expected.clone();
  for (const auto& [parameter, first, offset, count] : parts) {
    add_gaussian(counting_key(), parameter, first, 0.75f, expected, offset, count);
  }
  add_gaussian(counting_key(), parts, 0.75f, out);
  EXPECT_TRUE(at::equal(out, expected));
  EXPECT_FALSE(at::equal(out, at::full_like(out, 2.5)));
  parts.back().count = end;
  EXPECT_THROW(add_gaussian(counting_key(), parts, 0.75f, out), std::invalid_argument);
}

TEST(Gaussian, ScaleZeroChangesNothing) {
  std::vector<float> out(100, 2.5f);
  add_gaussian(counting_key(), 1, 3, 0, out);
  EXPECT_EQ(out, std::vector<float>(100, 2.5f));
}

TEST(Gaussian, RefusesScalesAndRangesThatMakeNoSense) {
  std::vector<float> out(2);
  for (const float scale : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(add_gaussian(counting_key(), 1, 0, scale, out), std::invalid_argument) << scale;
  }
  EXPECT_THROW(add_gaussian(counting_key(), 1, std::numeric_limits<uint64_t>::max(), 1, out), std::invalid_argument);
}

// ---------------------------------------------------------------------------------------------------------------------
// The ends of the arithmetic

struct RadiusCase {
  const char* name;
  uint64_t radius_bits;
};

class Radius : public testing::TestWithParam<RadiusCase> {};

TEST_P(Radius, HasRelativePrecision) {
  const uint64_t bits = GetParam().radius_bits;
  for (const uint64_t angle : {uint64_t{0}, uint64_t{1} << 61, uint64_t{5} << 61, ~uint64_t{0}}) {
    const std::array<uint32_t, 4> words = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32),
                                           static_cast<uint32_t>(angle), static_cast<uint32_t>(angle >> 32)};
    std::array<float, 2> z;
    box_muller(words.data(), z.data(), 1);
    const Pair pair = pair_of(bits, angle);
    // The lowest bit of the radius is dropped: if no other bit is set, its square may halve or double.
    const double dropped_bit = std::min(bits, ~bits) < 2 ? (std::numbers::sqrt2 - 1) * pair.radius : 0;
    EXPECT_NEAR(z[0], pair.cosine, 6 * 0x1p-24 * pair.radius + dropped_bit);
    EXPECT_NEAR(z[1], pair.sine, 6 * 0x1p-24 * pair.radius + dropped_bit);
    EXPECT_GT(std::hypot(z[0], z[1]), 0);
    EXPECT_LT(std::hypot(z[0], z[1]), 9.5);
  }
}

INSTANTIATE_TEST_SUITE_P(, Radius,
                         testing::Values(RadiusCase{"Smallest", 0},                         //
                                         RadiusCase{"High32BitsZero", 0x00000000deadbeef},  //
                                         RadiusCase{"HighBitsFew", 0x00000003deadbeef},     //
                                         RadiusCase{"Quarter", 0x4000000000000000},         //
                                         RadiusCase{"SqrtEighth", 0x5a82799999999999},      //
                                         RadiusCase{"BelowHalf", 0x7fffffffffffffff},       //
                                         RadiusCase{"Half", 0x8000000000000000},            //
                                         RadiusCase{"SqrtHalf", 0xb504f33333333333},        //
                                         RadiusCase{"NearOne", 0xfffffffffedcba98},         //
                                         RadiusCase{"Largest", 0xffffffffffffffff}),
                         [](const auto& test) { return test.param.name; });

TEST(Gaussian, AnotherKeyIsAnotherStream) {
  ChaChaKey key = counting_key();
  key[31] ^= 1;
  std::vector<float> z(64, 0.0f);
  add_gaussian(key, 1, 0, 1, z);
  const std::vector<float> other = gaussian(1, 0, 64);
  for (size_t i = 0; i < z.size(); ++i) {
    EXPECT_NE(z[i], other[i]);
  }
}

}  // namespace
}  // namespace ghostshard::kernels
