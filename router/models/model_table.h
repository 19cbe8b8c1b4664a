// ModelTable: the models that a router serves, by name.

#ifndef ROUTER_MODELS_MODEL_TABLE_H_
#define ROUTER_MODELS_MODEL_TABLE_H_

#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/models/translation_model.h"
#include "services/base/mutex.h"

namespace gshard {

// Thread-safe.
class ModelTable {
 public:
  // Serves `model`: its name refers to it at once or, for a standby, only
  // "name@version" does until MakeCurrent(). Errors: AlreadyExists.
  absl::Status Add(std::shared_ptr<TranslationModel> model,
                   bool standby = false);

  // Sets the names that the coordinator wants served. Until the first call,
  // missing models are Unavailable instead of NotFound; afterwards, expected
  // names are until they are added, removed or no longer expected. `names` may
  // include those of present models.
  void Expect(std::set<std::string> names);

  // Makes a standby the model that its name refers to. Does nothing otherwise.
  void MakeCurrent(const std::string& id);

  // Whether it is present and not a standby: its name refers to it or to a
  // newer version.
  bool HasName(const std::string& id) const;

  // Finds by name, "name@version", or empty if there is only one name; standbys
  // have none. Removing the model waits for holders of the result.
  //
  // Errors: NotFound, listing the models; InvalidArgument if `name` is empty
  // and there are several; Unavailable if it is empty and there are none, if
  // the model was interrupted and is not back, or as Expect() says.
  absl::StatusOr<std::shared_ptr<TranslationModel>> Find(
      const std::string& name) const;

  // All models, also standbys, by id. Removing one waits for holders of the
  // result, too. Errors: Unavailable until Expect().
  struct Listed {
    std::shared_ptr<TranslationModel> model;
    bool current = false;  // its name refers to it
  };
  absl::StatusOr<std::vector<Listed>> List() const;

  // Removes the model, if present: permanently with `wait`, which returns when
  // nobody holds it any more; otherwise it is interrupted and expected to
  // return. Returns false if `stop` has ended the wait: the model is back, as a
  // standby.
  bool Remove(const std::string& id, bool wait, std::stop_token stop = {});

 private:
  struct Uses {
    Mutex mutex;
    CondVar changed;
    int count ABSL_GUARDED_BY(mutex) = 0;
  };
  struct Entry {
    std::string name;  // empty for a standby
    std::shared_ptr<TranslationModel> model;
    std::shared_ptr<Uses> uses;
  };

  void Append(const std::string& name, Entry entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A reference that Remove() waits for.
  static std::shared_ptr<TranslationModel> Use(const Entry& entry);
  std::string Names() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the newest last
  std::set<std::string> interrupted_ ABSL_GUARDED_BY(mutex_);  // ids
  std::set<std::string> expected_ ABSL_GUARDED_BY(mutex_);     // names
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // Expect() was called
};

}  // namespace gshard

#endif  // ROUTER_MODELS_MODEL_TABLE_H_
