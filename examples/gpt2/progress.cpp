#include "examples/gpt2/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "examples/gpt2/number_text.h"

namespace ghostshard::gpt2 {

std::string clock_text(double seconds) {
  const int64_t whole = std::llround(seconds);
  char text[40];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02d:%02d", static_cast<long long>(whole / 3600),
                  static_cast<int>(whole / 60 % 60), static_cast<int>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%d:%02d", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  }
  return text;
}

Progress::Progress(int64_t steps, bool enabled, int64_t first)
    : steps_(steps), first_(first), enabled_(enabled), terminal_(::isatty(STDERR_FILENO) != 0) {}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

void Progress::show(const StepFacts& facts) {
  if (!enabled_) return;
  if (facts.public_loss) public_loss_ = facts.public_loss;
  const auto now = Clock::now();
  const bool due = last_ == Clock::time_point::min() ||
                   now - last_ >= (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10));
  if (!due && facts.step != steps_ && !facts.public_loss) return;
  last_ = now;

  const double elapsed = seconds();
  const double rate = static_cast<double>(facts.step - first_) / elapsed;
  const double left = rate > 0 ? static_cast<double>(steps_ - facts.step) / rate : 0;
  std::string line;
  if (terminal_) {
    constexpr int kWidth = 24;
    const auto filled = static_cast<int>(kWidth * facts.step / steps_);
    line = "\r\x1b[K";
    for (int i = 0; i < kWidth; ++i) line += i < filled ? "█" : "░";
    line += ' ';
  }
  char text[160];
  std::snprintf(text, sizeof text, "step %lld/%lld  %.2f s/step  %s left", static_cast<long long>(facts.step),
                static_cast<long long>(steps_), rate > 0 ? 1 / rate : 0.0, clock_text(left).c_str());
  line += text;
  if (facts.epsilon) {
    line += "  epsilon " + epsilon_text(*facts.epsilon, 3);
  }
  if (public_loss_) {
    std::snprintf(text, sizeof text, "  public loss %.4f", *public_loss_);
    line += text;
  }
  if (!terminal_) line += '\n';
  line_open_ = terminal_;
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

void Progress::finish() {
  if (enabled_ && line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

}  // namespace ghostshard::gpt2
