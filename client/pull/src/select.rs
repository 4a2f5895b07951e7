//! Chooses the files of a repository.
use std::collections::BTreeSet;

/// What to fetch.
#[derive(Debug, PartialEq)]
pub enum Selection {
    /// A GGUF file, or all files of a split model in order.
    Gguf(Vec<String>),
    /// The small files of a Hugging Face directory, the index of the weights included. `weights`: the only file of weights, unless
    /// the index lists them.
    Safetensors { small: Vec<String>, weights: Option<String> },
}

pub const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// Default quantizations in order of preference, as in llama.cpp (common/download.cpp).
const DEFAULTS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Parts of other models: image encoders, importance matrices, draft heads.
const NOT_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

fn is_gguf_model(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    path.ends_with(".gguf") && !NOT_MODELS.iter().any(|part| file.contains(part))
}

/// "m-00002-of-00003.gguf" is ("m", 2, 3); a file that is not split (its stem, 1, 1).
fn split_of(path: &str) -> (&str, usize, usize) {
    let stem = path.strip_suffix(".gguf").unwrap_or(path);
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    if let Some((rest, count)) = stem.rsplit_once("-of-") {
        if let Some((prefix, index)) = rest.rsplit_once('-') {
            if let (Some(index), Some(count)) = (number(index), number(count)) {
                return (prefix, index, count);
            }
        }
    }
    (stem, 1, 1)
}

/// Whether `quant` followed by a dot or a dash stands anywhere in the path, in any case.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_lowercase(), quant.to_ascii_lowercase());
    path.match_indices(&quant).any(|(at, found)| path[at + found.len()..].starts_with(['.', '-']))
}

fn all_parts(files: &[String], first: &str) -> Result<Vec<String>, String> {
    let (prefix, _, count) = split_of(first);
    if count <= 1 {
        return Ok(vec![first.to_string()]);
    }
    let mut parts = Vec::with_capacity(count.min(files.len()));
    for i in 1..=count {
        let part = format!("{prefix}-{i:05}-of-{count:05}.gguf");
        if !files.contains(&part) {
            return Err(format!("{part} is missing: file {i} of {count} of a split model"));
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Small files that the server may read, at the top of the repository.
fn is_small_file(path: &str) -> bool {
    path == "1_Pooling/config.json"
        || !path.contains('/')
            && (path.ends_with(".jinja")
                || path.ends_with(".json") && !path.ends_with(".index.json")
                || path == INDEX)
}

/// The files of `quant` among `files`. The error lists what there is.
pub fn select(files: &[String], quant: Option<&str>) -> Result<Selection, String> {
    let models: Vec<&String> =
        files.iter().filter(|f| is_gguf_model(f) && split_of(f).1 == 1).collect();
    let wanted: Vec<&str> = quant.map_or(DEFAULTS.to_vec(), |quant| vec![quant]);
    for quant in wanted {
        if let Some(first) = models.iter().find(|f| has_quant(f, quant)) {
            return Ok(Selection::Gguf(all_parts(files, first)?));
        }
    }
    if let Some(quant) = quant {
        let names: BTreeSet<&str> = models.iter().map(|f| f.as_str()).collect();
        let names: Vec<&str> = names.into_iter().take(40).collect();
        return Err(match names.is_empty() {
            true => format!("quantization {quant:?}: the repository has no GGUF files; name it without a quantization"),
            false => format!("quantization {quant:?} is not there; allowed: a part of {}", names.join(", ")),
        });
    }
    if let Some(first) = models.first() {
        return Ok(Selection::Gguf(all_parts(files, first)?));
    }
    let has = |name: &str| files.iter().any(|f| f == name);
    if has("config.json") && (has(WEIGHTS) || has(INDEX)) {
        let small = files.iter().filter(|f| is_small_file(f)).cloned().collect();
        return Ok(Selection::Safetensors { small, weights: has(WEIGHTS).then(|| WEIGHTS.to_string()) });
    }
    Err("the repository has neither a .gguf file nor config.json with model.safetensors".to_string())
}

/// The names of the weight files in the text of an index.
pub fn shards(index: &str) -> Result<Vec<String>, String> {
    let value: serde_json::Value = serde_json::from_str(index).map_err(|e| format!("{INDEX}: {e}"))?;
    let map = value["weight_map"].as_object().ok_or(format!("{INDEX}: weight_map is missing"))?;
    let names: BTreeSet<&str> = map.values().filter_map(|v| v.as_str()).collect();
    if names.is_empty() || !names.iter().all(|n| n.ends_with(".safetensors") && good_path(n) && !n.contains('/')) {
        return Err(format!("{INDEX}: weight_map: allowed: names of .safetensors files"));
    }
    Ok(names.into_iter().map(str::to_string).collect())
}

/// A relative path without parts that leave the folder.
pub fn good_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 1024
        && !path.contains(['\\', '\0'])
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| n.to_string()).collect()
    }
    fn gguf(names: &[&str], quant: Option<&str>) -> Vec<String> {
        match select(&files(names), quant) {
            Ok(Selection::Gguf(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn quantizations() {
        let all = ["README.md", "m-fp16.gguf", "m-Q8_0.gguf", "m-q4_k_m.gguf", "m-Q4_K_S.gguf", "mmproj-Q4_K_M.gguf"];
        assert_eq!(gguf(&all, None), ["m-q4_k_m.gguf"]);
        assert_eq!(gguf(&all, Some("q8_0")), ["m-Q8_0.gguf"]);
        assert_eq!(gguf(&all, Some("FP16")), ["m-fp16.gguf"]);
        assert_eq!(gguf(&["m-fp16.gguf", "m-Q8_0.gguf"], None), ["m-Q8_0.gguf"]);
        assert_eq!(gguf(&["m.gguf", "n.gguf"], None), ["m.gguf"]);
        // "Q4_K" is followed by neither a dot nor a dash.
        let error = select(&files(&all), Some("Q4_K")).unwrap_err();
        assert!(error.contains("m-Q4_K_S.gguf") && !error.contains("mmproj"), "{error}");
        assert!(select(&files(&["config.json", "model.safetensors"]), Some("Q4_0")).is_err());
    }

    #[test]
    fn split_files() {
        let all = ["Q8_0/m-Q8_0-00002-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "m-Q4_K_M.gguf"];
        assert_eq!(gguf(&all, Some("Q8_0")), ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]);
        assert!(select(&files(&all[1..]), Some("Q8_0")).unwrap_err().contains("file 2 of 2"));
        assert_eq!(split_of("a-1-of-2.gguf"), ("a-1-of-2", 1, 1));
    }

    #[test]
    fn safetensors() {
        let all = files(&["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "consolidated.safetensors",
                          "onnx/model.json", "1_Pooling/config.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]);
        let small = files(&["config.json", "tokenizer.json", "chat_template.jinja", "1_Pooling/config.json"]);
        assert_eq!(select(&all, None), Ok(Selection::Safetensors { small, weights: Some(WEIGHTS.into()) }));
        assert!(select(&files(&["config.json", "pytorch_model.bin"]), None).is_err());
    }

    #[test]
    fn index() {
        let text = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#;
        assert_eq!(shards(text).unwrap(), ["model-1.safetensors", "model-2.safetensors"]);
        for text in ["", "{}", r#"{"weight_map": {"a": "../x.safetensors"}}"#, r#"{"weight_map": {"a": "x.bin"}}"#] {
            assert!(shards(text).is_err(), "{text}");
        }
    }

    #[test]
    fn paths() {
        assert!(good_path("a/b.gguf"));
        for path in ["", "/a", "a//b", "../a", "a/../b", "a/.", "a\\b", "a\nb"] {
            assert!(!good_path(path), "{path:?}");
        }
    }
}
