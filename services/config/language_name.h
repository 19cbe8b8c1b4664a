// Names of languages in jobs, corpora and tokenizers.

#ifndef SERVICES_CONFIG_LANGUAGE_NAME_H_
#define SERVICES_CONFIG_LANGUAGE_NAME_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr size_t kMaxLanguageBytes = 32;

// The most languages for which a tokenizer is trained. Their tags are one
// argument of spm_train, which Linux bounds to 128 KiB.
inline constexpr size_t kMaxLanguages = 3500;

// 1 to 32 ASCII letters, digits, '_', '-' or '@', such as de or pt_BR. A
// tokenizer has a token <name> for each language, so "s", "pad" and "unk" are
// not allowed: their tokens have other meanings.
bool IsLanguageName(absl::string_view name);

}  // namespace gshard

#endif  // SERVICES_CONFIG_LANGUAGE_NAME_H_
