// Human-readable tables with aligned columns.

#ifndef SERVICES_BASE_TABLE_H_
#define SERVICES_BASE_TABLE_H_

#include <string>
#include <vector>

namespace gshard {

class Table {
 public:
  // `columns` are the headings; those in `right` (by index) are right-aligned,
  // as for numbers.
  explicit Table(std::vector<std::string> columns,
                 std::vector<size_t> right = {});

  // REQUIRES: as many cells as columns.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.size() == 1; }

  // Lines end in '\n' without trailing blanks. Two blanks between columns;
  // widths are in UTF-8 characters, not bytes.
  std::string ToText() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the headings first
  std::vector<bool> right_;
};

}  // namespace gshard

#endif  // SERVICES_BASE_TABLE_H_
