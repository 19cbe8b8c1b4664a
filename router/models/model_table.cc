#include "router/models/model_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gshard {
namespace {

absl::Status NotTold() {
  return absl::UnavailableError(
      "the router has not been told yet which models it is to serve");
}

}  // namespace

absl::Status ModelTable::Add(std::shared_ptr<TranslationModel> model,
                             bool standby) {
  const std::string& id = model->id();
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.model->id() == id) {
      return absl::AlreadyExistsError(absl::StrCat("model ", id, " is loaded"));
    }
  }
  Append(standby ? "" : ModelNameOf(id),
         {.name = {}, .model = model, .uses = std::make_shared<Uses>()});
  return absl::OkStatus();
}

void ModelTable::Expect(std::set<std::string> names) {
  MutexLock lock(mutex_);
  told_ = true;
  expected_ = std::move(names);
}

void ModelTable::MakeCurrent(const std::string& id) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(
      entries_.begin(), entries_.end(),
      [&id](const Entry& entry) { return entry.model->id() == id; });
  if (found == entries_.end() || !found->name.empty()) return;
  Entry entry = std::move(*found);
  entries_.erase(found);
  Append(ModelNameOf(id), std::move(entry));
}

bool ModelTable::HasName(const std::string& id) const {
  MutexLock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&id](const Entry& entry) {
                       return entry.model->id() == id && !entry.name.empty();
                     });
}

void ModelTable::Append(const std::string& name, Entry entry) {
  entry.name = name;
  entries_.push_back(std::move(entry));
  if (name.empty()) return;
  expected_.erase(name);
  std::erase_if(interrupted_, [&name](const std::string& other) {
    return ModelNameOf(other) == name;
  });
}

absl::StatusOr<std::shared_ptr<TranslationModel>> ModelTable::Find(
    const std::string& name) const {
  MutexLock lock(mutex_);
  if (name.empty()) {
    std::set<std::string> names;
    for (const Entry& entry : entries_) {
      if (!entry.name.empty()) names.insert(entry.name);
    }
    if (names.empty()) {
      return absl::UnavailableError("no model is loaded on this router");
    }
    if (names.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected one of the models, which are ", Names(), ", got none"));
    }
  }
  const auto entry = std::find_if(
      entries_.rbegin(), entries_.rend(), [&name](const Entry& entry) {
        return name.empty() ? !entry.name.empty()
                            : entry.name == name || entry.model->id() == name;
      });
  if (entry == entries_.rend()) {
    for (const std::string& id : interrupted_) {
      if (ModelNameOf(id) != name && id != name) continue;
      return absl::UnavailableError(
          absl::StrCat("model ", id,
                       " is not ready: a process it needs was "
                       "lost, and it is being loaded again"));
    }
    if (!told_) return NotTold();
    // A router that was away is told all names again, also of what it serves.
    const std::string model = ModelNameOf(name);
    const bool served =
        std::any_of(entries_.begin(), entries_.end(),
                    [&model](const Entry& one) { return one.name == model; });
    if (expected_.contains(model) && !served) {
      return absl::UnavailableError(
          absl::StrCat("model ", name, " is not ready: it is being loaded"));
    }
    return absl::NotFoundError(
        absl::StrCat("no model '", name, "' is loaded on this router; ",
                     entries_.empty() ? "none is" : "loaded: " + Names()));
  }
  return Use(*entry);
}

std::shared_ptr<TranslationModel> ModelTable::Use(const Entry& entry) {
  const std::shared_ptr<Uses> uses = entry.uses;
  MutexLock uses_lock(uses->mutex);
  ++uses->count;
  return std::shared_ptr<TranslationModel>(
      entry.model.get(),
      [model = entry.model, uses](TranslationModel*) mutable {
        // First, so that the model ends with who removes it: this thread may
        // hold locks.
        model = nullptr;
        MutexLock lock(uses->mutex);
        --uses->count;
        uses->changed.NotifyAll();
      });
}

bool ModelTable::Remove(const std::string& id, bool wait,
                        std::stop_token stop) {
  Entry removed;
  {
    MutexLock lock(mutex_);
    const auto entry = std::find_if(
        entries_.begin(), entries_.end(),
        [&id](const Entry& entry) { return entry.model->id() == id; });
    if (wait) {
      interrupted_.erase(id);
      expected_.erase(ModelNameOf(id));
    }
    if (entry == entries_.end()) return true;
    if (!wait) interrupted_.insert(id);
    removed = std::move(*entry);
    entries_.erase(entry);
  }
  if (!wait) return true;
  Uses& uses = *removed.uses;
  const std::stop_callback wake(stop, [&uses] {
    MutexLock lock(uses.mutex);
    uses.changed.NotifyAll();
  });
  {
    MutexLock lock(uses.mutex);
    uses.changed.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(uses.mutex) {
      return uses.count == 0 || stop.stop_requested();
    });
    if (uses.count == 0) return true;
  }
  MutexLock lock(mutex_);
  removed.name = "";
  entries_.insert(entries_.begin(), std::move(removed));
  return false;
}

absl::StatusOr<std::vector<ModelTable::Listed>> ModelTable::List() const {
  MutexLock lock(mutex_);
  if (!told_) return NotTold();
  std::map<std::string, const Entry*> current;  // by name, the newest
  for (const Entry& entry : entries_) {
    if (!entry.name.empty()) current[entry.name] = &entry;
  }
  std::map<std::string, Listed> by_id;
  for (const Entry& entry : entries_) {
    const auto named = current.find(entry.name);
    by_id[entry.model->id()] = {
        Use(entry), named != current.end() && named->second == &entry};
  }
  std::vector<Listed> listed;
  for (auto& [id, one] : by_id) listed.push_back(std::move(one));
  return listed;
}

std::string ModelTable::Names() const {
  return absl::StrJoin(entries_, ", ",
                       [](std::string* out, const Entry& entry) {
                         out->append(entry.model->id());
                       });
}

}  // namespace gshard
