#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/training_job_proto.h"
#include "tests/integration/hostile_rows.h"

namespace gshard {
namespace {

using enum absl::StatusCode;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string Long(int count) { return std::string(count, 'x'); }

// The message that contains field `path` of `request`; the first element of
// repeated fields. Creates missing messages on the way.
Message* Holder(Message* request,
                const std::vector<const FieldDescriptor*>& path) {
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto* reflection = request->GetReflection();
    if (!path[i]->is_repeated()) {
      request = reflection->MutableMessage(request, path[i]);
    } else if (reflection->FieldSize(*request, path[i]) > 0) {
      request = reflection->MutableRepeatedMessage(request, path[i], 0);
    } else {
      request = reflection->AddMessage(request, path[i]);
    }
  }
  return request;
}

class JobRows {
 public:
  explicit JobRows(const TrainingJob& job) {
    *good_.mutable_job() = TrainingJobToProto(job);
    // Missing files, which are looked up only after all other checks pass.
    good_.mutable_job()->mutable_data()->add_train_files()->set_path("no file");
    good_.mutable_job()->mutable_data()->add_dev_files()->set_path("no file");
    const auto* field = good_.GetDescriptor()->FindFieldByName("job");
    path_.push_back(field);
    AddMessage(field->message_type(), "job");
  }
  std::vector<HostileRow> Take() { return std::move(rows_); }

 private:
  void AddMessage(const google::protobuf::Descriptor* message,
                  const std::string& name) {
    for (int i = 0; i < message->field_count(); ++i) {
      const FieldDescriptor* const field = message->field(i);
      const std::string inner = absl::StrCat(name, ".", field->name());
      path_.push_back(field);
      if (field->message_type() != nullptr) {
        AddMessage(field->message_type(), inner);
      } else {
        AddField(field, inner);
      }
      path_.pop_back();
    }
  }

  template <typename Set>
  void Add(const std::string& name, const Set& set) {
    v1::SubmitJobRequest request = good_;
    Message* const holder = Holder(&request, path_);
    set(holder, holder->GetReflection());
    rows_.push_back({"CoordinatorService.SubmitJob", name, "",
                     request.SerializeAsString(), kInvalidArgument});
  }

  void AddField(const FieldDescriptor* field, const std::string& name) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        for (const int64_t bad :
             {int64_t{-1}, std::numeric_limits<int64_t>::min(),
              std::numeric_limits<int64_t>::max()}) {
          if (field->name() == "seed" && bad > 0) continue;  // a valid seed
          Add(name, [&](Message* message, auto* reflection) {
            reflection->SetInt64(message, field, bad);
          });
        }
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()}) {
          Add(name, [&](Message* message, auto* reflection) {
            reflection->SetDouble(message, field, bad);
          });
        }
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        for (const int bad : {0, -1, 99, std::numeric_limits<int>::min(),
                              std::numeric_limits<int>::max()}) {
          Add(name, [&](Message* message, auto* reflection) {
            reflection->SetEnumValue(message, field, bad);
          });
        }
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        Add(name, [&](Message* message, auto* reflection) {
          reflection->SetString(message, field, std::string(5000, '/'));
        });
        Add(name, [&](Message* message, auto* reflection) {
          reflection->SetString(message, field, std::string("a\0b", 3));
        });
        Add(name, [&](Message* message, auto* reflection) {
          reflection->SetString(message, field, "\xFF");
        });
        rows_.back().says = "SubmitJobRequest";
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        break;
      default:
        rows_.push_back({"", name, "", ""});  // a type with no known bad value
    }
  }

  v1::SubmitJobRequest good_;
  std::vector<const FieldDescriptor*> path_;
  std::vector<HostileRow> rows_;
};

}  // namespace

std::vector<HostileRow> SubmitJobRows(const TrainingJob& job) {
  return JobRows(job).Take();
}

std::vector<HostileRow> CoordinatorRows(const std::string& checkpoint) {
  constexpr char kWatch[] = "CoordinatorService.WatchJob";
  constexpr char kCancel[] = "CoordinatorService.CancelJob";
  constexpr char kList[] = "CoordinatorService.ListJobs";
  constexpr char kDescribe[] = "CoordinatorService.Describe";
  constexpr char kLoad[] = "CoordinatorService.LoadModel";
  constexpr char kUnload[] = "CoordinatorService.UnloadModel";
  const std::string from =
      absl::StrCat("checkpoint_directory: '", checkpoint, "' ");
  std::vector<HostileRow> rows = {
      {kList, "job", "job: ''", "", kOk},
      {kList, "job", "job: 'names'", "", kOk},
      {kList, "include_history", "include_history: true", "", kOk},
      {kDescribe, "include_experts", "include_experts: true", "", kOk},
      {kWatch, "job", "job: 'names'", "", kOk},
      {kCancel, "job", "job: 'names'", "", kOk},
      {kWatch, "job", "", "", kNotFound},
      {kCancel, "job", "", "", kNotFound},

      {kLoad, "name", from, "", kInvalidArgument},
      {kLoad, "name", from + "name: 'a/b'", "", kInvalidArgument},
      {kLoad, "name", from + "name: '../names'", "", kInvalidArgument},
      {kLoad, "name", from + "name: 'names@1'", "", kInvalidArgument},
      {kLoad, "name", from + "name: 'a\\000b'", "", kInvalidArgument},
      {kLoad, "name", absl::StrCat(from, "name: '", Long(129), "'"), "",
       kInvalidArgument},
      {kLoad, "name", from + "name: '\\377'", "", kInvalidArgument,
       "LoadModelRequest"},
      {kLoad, "version", from + "name: 'a' version: 'a b'", "",
       kInvalidArgument},
      {kLoad, "version", from + "name: 'a' version: '../1'", "",
       kInvalidArgument},
      {kLoad, "version",
       absl::StrCat(from, "name: 'a' version: '", Long(129), "'"), "",
       kInvalidArgument},
      {kLoad, "version", from + "name: 'a' version: '\\377'", "",
       kInvalidArgument, "LoadModelRequest"},
      {kLoad, "checkpoint_directory", "name: 'a'", "", kInvalidArgument},
      {kLoad, "checkpoint_directory",
       "name: 'a' checkpoint_directory: '/no/such/folder'", "", kNotFound},
      {kLoad, "checkpoint_directory",
       "name: 'a' checkpoint_directory: '../../../no/such/folder'", "",
       kNotFound},
      {kLoad, "checkpoint_directory",
       "name: 'a' checkpoint_directory: '/tmp\\000x'", "", kInvalidArgument},
      {kLoad, "checkpoint_directory",
       absl::StrCat("name: 'a' checkpoint_directory: '/", Long(5000), "'"), "",
       kInvalidArgument},
      {kLoad, "checkpoint_directory",
       absl::StrCat("name: 'a' checkpoint_directory: '/", Long(300), "'"), "",
       kInvalidArgument, "File name too long"},
      {kLoad, "checkpoint_directory", "name: 'a' checkpoint_directory: '\\377'",
       "", kInvalidArgument, "LoadModelRequest"},
      {kLoad, "replicas", from + "name: 'names' replicas: 2", "",
       kOk},  // already satisfied
      {kLoad, "weights", from + "name: 'names' weights: FLOAT32", "",
       kOk},  // the type of the checkpoint
      {kLoad, "weights", from + "name: 'names' weights: 7", "",
       kInvalidArgument},
      {kLoad, "weights", from + "name: 'names' weights: -1", "",
       kInvalidArgument},
      {kLoad, "rollback", "rollback: true name: 'names' weights: INT8", "",
       kInvalidArgument},
      {kLoad, "rollback", "rollback: true name: 'names' version: '1'", "",
       kInvalidArgument},
      {kLoad, "rollback", from + "rollback: true name: 'names'", "",
       kInvalidArgument},
      {kLoad, "rollback", "rollback: true name: 'names' replicas: 1", "",
       kInvalidArgument},
      {kLoad, "rollback", "rollback: true name: 'names'", "",
       kFailedPrecondition},  // there is no earlier version
      {kLoad, "rollback", "rollback: true name: 'other'", "", kNotFound},
      {kLoad, "rollback", "rollback: true", "", kNotFound},
  };
  for (const char* value : {"-1", "-2147483648", "17", "2147483647"}) {
    rows.push_back({kLoad, "replicas",
                    absl::StrCat(from, "name: 'a' replicas: ", value), ""});
  }
  for (const std::string& session :
       {std::string(), std::string("names"), std::string("names@2"),
        std::string("@"), std::string("../names@1"), std::string("a\\000b"),
        Long(5000)}) {
    rows.push_back({kUnload, "session",
                    absl::StrCat("session: '", session, "'"), "", kNotFound});
  }
  rows.push_back({kUnload, "session", "session: '\\377'", "", kInvalidArgument,
                  "UnloadModelRequest"});
  for (const char* method : {kWatch, kCancel, kList}) {
    for (const std::string& job :
         {std::string("other"), std::string("names/1"), std::string("../names"),
          std::string("a\\000b"), Long(5000)}) {
      rows.push_back(
          {method, "job", absl::StrCat("job: '", job, "'"), "", kNotFound});
    }
    rows.push_back(
        {method, "job", "job: '\\377'", "", kInvalidArgument, "Request"});
  }
  return rows;
}

std::vector<std::string> MalformedMessages() {
  return {
      std::string("\x0A\xFF\x01", 3),              // ends within a field
      std::string("\x08", 1),                      // or within a number
      std::string("\x00\x01", 2),                  // a field without a number
      std::string("\x0F", 1),                      // of no wire type
      std::string("\x0C", 1),                      // a group that has not begun
      std::string(11, '\x80'),                     // a number without an end
      std::string(200, '\x7B'),                    // groups in groups
      std::string("\x0A\xFF\xFF\xFF\xFF\x0F", 6),  // a length of 4 GiB
      std::string("GET / HTTP/1.1\r\n\r\n"),
  };
}

}  // namespace gshard
