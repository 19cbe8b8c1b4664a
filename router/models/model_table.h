// ModelTable: the models that a router serves, by name.

#ifndef ROUTER_MODELS_MODEL_TABLE_H_
#define ROUTER_MODELS_MODEL_TABLE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/models/translation_model.h"

namespace gshard {

// Thread-safe.
class ModelTable {
 public:
  // Serves `model`: at once the one that its name stands for or, as a standby,
  // by "name@version" only until MakeCurrent(). Errors: AlreadyExists.
  absl::Status Add(std::shared_ptr<TranslationModel> model,
                   bool standby = false);

  // The coordinator says what is to be served: until it has done so once, what
  // is not there is Unavailable instead of NotFound, and so are these names
  // until they are there, or others are expected.
  void Expect(std::set<std::string> names);

  // A standby becomes what its name stands for. Nothing happens to others.
  void MakeCurrent(const std::string& id);

  // It is there, and no standby: its name stands for it or for a newer one.
  bool HasName(const std::string& id) const;

  // By name, "name@version", or empty if there is one name only; standbys have
  // none. Removing the model waits for those who hold the result.
  //
  // Errors: NotFound, listing the models; InvalidArgument if `name` is empty
  // and there are several; Unavailable if it is empty and there are none, if
  // the model was interrupted and is not back, or as Expect() says.
  absl::StatusOr<std::shared_ptr<TranslationModel>> Find(
      const std::string& name) const;

  // Takes the model out, if it is there: for good with `wait`, which returns
  // when nobody holds it any more; otherwise it is interrupted, and expected
  // back.
  void Remove(const std::string& id, bool wait);

  // Interrupts all.
  void Clear();

  std::vector<std::string> ids() const;

 private:
  struct Uses {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;  // guarded by mutex
  };
  struct Entry {
    std::string name;  // empty for a standby
    std::shared_ptr<TranslationModel> model;
    std::shared_ptr<Uses> uses;
  };

  // The rest needs mutex_.
  void Append(const std::string& name, Entry entry);
  std::string List() const;

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;         // guarded by mutex_; the newest last
  std::set<std::string> interrupted_;  // ids; guarded by mutex_
  std::set<std::string> expected_;     // names; guarded by mutex_
  bool told_ = false;                  // Expect() was called; guarded by mutex_
};

}  // namespace gshard

#endif  // ROUTER_MODELS_MODEL_TABLE_H_
