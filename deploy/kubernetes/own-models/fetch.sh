# Fills the volume. A file takes its name only when all of it is there, so that a pod that is ended in between leaves no half of one.
set -eu
folder=${MODELS_FOLDER:-/models}

# fetch FILE: from below MODELS_URL, once.
fetch() {
  if [ -f "$folder/$1" ]; then return; fi
  mkdir -p "$(dirname "$folder/$1")"
  curl --fail --location --retry 5 --silent --show-error --output "$folder/$1.$HOSTNAME" "$MODELS_URL/$1"
  mv "$folder/$1.$HOSTNAME" "$folder/$1"
}

fetch large.gguf
fetch small.gguf
