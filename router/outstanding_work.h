// OutstandingWork: what callers have been promised and not been given, and how
// much of it comes before a new request, in tokens (FairQueue's).
//
// Shares being fair, a request waits for as much of everybody else's work as it
// brings itself, not for all of it.

#ifndef ROUTER_OUTSTANDING_WORK_H_
#define ROUTER_OUTSTANDING_WORK_H_

#include <cstdint>
#include <map>
#include <string>

namespace gshard {

class OutstandingWork {
 public:
  // Tokens of a caller's flow that are promised, begun and done. Those begun
  // are on the average half done, and count so in what comes before others.
  void Promise(const std::string& caller, uint64_t flow, int64_t tokens);
  void Begin(const std::string& caller, uint64_t flow, int64_t tokens);
  void Finish(const std::string& caller, uint64_t flow, int64_t tokens);
  // Promised, and never begun.
  void Drop(const std::string& caller, uint64_t flow, int64_t tokens);

  // What the caller has been promised and not been given.
  int64_t TokensOf(const std::string& caller) const;
  int64_t tokens() const { return tokens_; }

  // Tokens until a further `tokens` of this flow are done, they included.
  double Until(const std::string& caller, uint64_t flow, int64_t tokens) const;

  bool empty() const { return callers_.empty(); }

 private:
  struct Flow {
    int64_t tokens = 0;  // not finished
    double work = 0;     // those begun count half
  };
  struct Caller : Flow {
    std::map<uint64_t, Flow> flows;
  };

  void Add(const std::string& caller, uint64_t flow, int64_t tokens,
           double work);

  int64_t tokens_ = 0;
  std::map<std::string, Caller> callers_;  // none is empty
};

}  // namespace gshard

#endif  // ROUTER_OUTSTANDING_WORK_H_
