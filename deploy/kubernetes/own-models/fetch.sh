# Downloads models into the volume. A file gets its name when it is complete, so an interrupted pod leaves no partial model.
set -eu
folder=${MODELS_FOLDER:-/models}

# fetch FILE: downloads MODELS_URL/FILE if it is missing.
fetch() {
  if [ -f "$folder/$1" ]; then return; fi
  mkdir -p "$(dirname "$folder/$1")"
  curl --fail --location --retry 5 --silent --show-error --output "$folder/$1.$HOSTNAME" "$MODELS_URL/$1"
  mv "$folder/$1.$HOSTNAME" "$folder/$1"
}

fetch large.gguf
fetch small.gguf
