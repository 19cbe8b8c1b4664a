# shellcheck shell=bash
# Sourced by the scripts of tests that train.

# small_job NAME FOLDER STEPS LINE...: prints a job whose steps take
# milliseconds, with checkpoints in FOLDER. The lines are fields of a TrainingJob,
# each in one line; "checkpoint FIELDS" adds to where that is.
small_job() {
  local name=$1 folder=$2 last=$3 line fields='' checkpoint
  shift 3
  checkpoint="directory: \"$folder\""
  for line in "$@"; do
    case $line in
      checkpoint\ *) checkpoint+=" ${line#checkpoint }" ;;
      *) fields+=$line$'\n' ;;
    esac
  done
  # What no line says.
  for line in "model { model_width: 32 ffn_width: 48 expert_width: 40 heads: 2
      head_width: 16 $small_model }" \
      "data { train_path: \"$PWD/tests/data/names.tsv\" }" \
      "microbatches_per_step: 2" "tokens_per_microbatch: 256"; do
    [[ $'\n'$fields == *$'\n'"${line%% *}"* ]] || fields+=$line$'\n'
  done
  cat << TEXT
name: "$name"
${fields}steps: $last
max_length: 48
adam {}
schedule { multiplier: 0.02 warmup_steps: 20 linear_warmup: true }
checkpoint { $checkpoint }
TEXT
}

# What models of other widths have, too.
readonly small_model="encoder_layers: 2 decoder_layers: 2 experts: 8
  max_positions: 64 source_vocabulary_size: 300 target_vocabulary_size: 300
  shared_vocabulary: true"
