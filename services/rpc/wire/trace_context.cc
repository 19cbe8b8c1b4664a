#include "services/rpc/wire/trace_context.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/name.h"
#include "services/base/random.h"

namespace gshard {
namespace {

constexpr size_t kTraceDigits = 32;
constexpr size_t kSpanDigits = 16;
// "00-" trace "-" span "-" flags.
constexpr size_t kLength = 3 + kTraceDigits + 1 + kSpanDigits + 1 + 2;
constexpr size_t kMaxMembers = 32;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f');
  });
}

bool IsZero(absl::string_view text) {
  return text.find_first_not_of('0') == absl::string_view::npos;
}

int HexValue(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// A key that is unique to this process, from the machine's entropy.
uint64_t ProcessKey() {
  static const uint64_t key = [] {
    std::random_device entropy;
    return uint64_t{entropy()} << 32 | entropy();
  }();
  return key;
}

uint64_t NextUnique() {
  static std::atomic<uint64_t> next{0};
  return RandomBits(ProcessKey(), next.fetch_add(1, std::memory_order_relaxed));
}

std::string Digits(uint64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16));
}

std::string NewSpanId() {
  // Never zero, which is an invalid span id.
  return Digits(NextUnique() | 1);
}

bool IsKeyCharacter(char c) {
  return absl::ascii_islower(static_cast<unsigned char>(c)) ||
         absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '_' ||
         c == '-' || c == '*' || c == '/' || c == '@';
}

bool IsMember(absl::string_view member) {
  const size_t equals = member.find('=');
  if (equals == absl::string_view::npos || equals == 0 || equals > 256) {
    return false;
  }
  const absl::string_view key = member.substr(0, equals);
  const absl::string_view value = member.substr(equals + 1);
  return IsKeyCharacter(key[0]) &&
         std::all_of(key.begin(), key.end(), IsKeyCharacter) &&
         !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(), [](char c) {
           return 0x20 <= c && c <= 0x7e && c != ',' && c != '=';
         });
}

}  // namespace

std::string TraceContext::Traceparent() const {
  if (trace_id.empty()) return "";
  return absl::StrCat("00-", trace_id, "-", span_id, "-",
                      absl::Hex(flags, absl::kZeroPad2));
}

TraceContext ParseTraceparent(absl::string_view text) {
  if (text.size() < kLength) return {};
  const absl::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return {};
  // A later version may continue after another dash.
  if (version == "00" ? text.size() != kLength
                      : text.size() > kLength && text[kLength] != '-') {
    return {};
  }
  const absl::string_view trace = text.substr(3, kTraceDigits);
  const absl::string_view span = text.substr(4 + kTraceDigits, kSpanDigits);
  const absl::string_view flags = text.substr(kLength - 2, 2);
  const bool dashes = text[2] == '-' && text[3 + kTraceDigits] == '-' &&
                      text[kLength - 3] == '-';
  if (!dashes || !IsHex(trace) || !IsHex(span) || !IsHex(flags) ||
      IsZero(trace) || IsZero(span)) {
    return {};
  }
  return {.trace_id = std::string(trace),
          .span_id = std::string(span),
          .flags = static_cast<uint8_t>(HexValue(flags[0]) << 4 |
                                        HexValue(flags[1])),
          .state = ""};
}

bool IsTracestate(absl::string_view text) {
  if (text.empty() || text.size() > kMaxTracestateBytes) return false;
  size_t members = 0;
  for (absl::string_view member : absl::StrSplit(text, ',')) {
    member = absl::StripAsciiWhitespace(member);
    if (member.empty()) continue;  // allowed by the specification
    if (!IsMember(member) || ++members > kMaxMembers) return false;
  }
  return members > 0;
}

TraceContext ContinueTrace(absl::string_view traceparent,
                           absl::string_view tracestate) {
  TraceContext trace = ParseTraceparent(traceparent);
  if (trace.trace_id.empty()) return NewTrace();
  trace = NewSpan(std::move(trace));
  trace.flags &= 1;  // the only flag of version 00
  if (IsTracestate(tracestate)) trace.state = std::string(tracestate);
  return trace;
}

TraceContext NewSpan(TraceContext trace) {
  trace.span_id = NewSpanId();
  return trace;
}

TraceContext NewTrace() {
  return {.trace_id = NewRequestId(),
          .span_id = NewSpanId(),
          .flags = 0,
          .state = ""};
}

TraceContext TraceOf(absl::string_view name) {
  const uint64_t key = FoldIn(ProcessKey(), name);
  return {.trace_id = absl::StrCat(Digits(RandomBits(key, 0)),
                                   Digits(RandomBits(key, 1) | 1)),
          .span_id = NewSpanId(),
          .flags = 0,
          .state = ""};
}

std::string NewRequestId() {
  return absl::StrCat(Digits(NextUnique()), Digits(NextUnique() | 1));
}

bool IsRequestId(absl::string_view text) {
  return !text.empty() && text.size() <= 128 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return IsNameCharacter(c) || c == ':' || c == '/';
         });
}

}  // namespace gshard
