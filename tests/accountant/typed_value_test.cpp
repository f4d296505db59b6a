#include "accountant/typed_value.h"

#include <gtest/gtest.h>

#include <string>

namespace ghostshard::accountant {
namespace {

TEST(TypedValue, WholeNumbersAreDecimalDigitsWithoutLeadingZeros) {
  for (const char* good : {"0", "7", "10", "-1", "999999999999999999"}) {
    EXPECT_EQ(mistake_in_value("INT:INT in [1 - 1024]", good), "");
    EXPECT_EQ(mistake_in_value("UINT", good), "");
  }
  for (const char* bad :
       {"010", "00", "-01", "0x10", "0b1", "1'000", "1_000", "8 ", " 8", "+8", "8.0", "1e3", "-", "8\n"})
    EXPECT_NE(mistake_in_value("INT", bad), "") << bad;
  EXPECT_EQ(mistake_in_value("INT", std::string(19, '9')),
            "must be a whole number of at most 18 digits, got " + std::string(19, '9'));
}

TEST(TypedValue, NumbersAreDecimal) {
  for (const char* good : {"0.5", "+1", "-1e-6", "08", "inf", "nan", "1e999"})
    EXPECT_EQ(mistake_in_value("FLOAT", good), "") << good;
  for (const char* bad : {"0x1p-3", " 1", "1 ", "1_0", "1,5", "one", "+"})
    EXPECT_EQ(mistake_in_value("FLOAT", bad), "must be a decimal number, got " + std::string(bad));
}

TEST(TypedValue, NoValueIsEmpty) {
  for (const char* type : {"INT", "UINT", "FLOAT", "TEXT", ""})
    EXPECT_EQ(mistake_in_value(type, ""), "must not be empty: leave the option out, or give it a value");
  EXPECT_EQ(mistake_in_value("TEXT", "010"), "");
}

}  // namespace
}  // namespace ghostshard::accountant
