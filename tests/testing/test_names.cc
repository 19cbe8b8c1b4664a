#include "tests/testing/test_names.h"

#include <dlfcn.h>
#include <netdb.h>

#include <cstdlib>

#include "absl/strings/match.h"

namespace gshard {
namespace {

// gRPC looks at it when it begins.
[[maybe_unused]] const int chosen =
    setenv("GRPC_DNS_RESOLVER", "native", /*overwrite=*/1);

}  // namespace

TestNames& TestNames::Get() {
  static TestNames& names = *new TestNames;
  return names;
}

void TestNames::LeadTo(absl::string_view address) {
  MutexLock lock(mutex_);
  address_ = std::string(address);
  asked_.clear();
}

std::vector<TestNames::Clock::time_point> TestNames::Asked(size_t times) {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return asked_.size() >= times;
  });
  return asked_;
}

std::string TestNames::Resolve() {
  MutexLock lock(mutex_);
  asked_.push_back(Clock::now());
  changed_.NotifyAll();
  return address_;
}

}  // namespace gshard

extern "C" int getaddrinfo(const char* name, const char* service,
                           const addrinfo* hints, addrinfo** found) {
  static const auto library =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || !absl::EndsWith(name, ".test")) {
    return library(name, service, hints, found);
  }
  const std::string address = gshard::TestNames::Get().Resolve();
  return address.empty() ? EAI_NONAME
                         : library(address.c_str(), service, hints, found);
}
