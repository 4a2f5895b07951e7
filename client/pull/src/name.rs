//! Names of models: ORG/REPO[@REVISION][:QUANT].
use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub struct ModelName {
    pub repo: String,             // "org/repo"
    pub revision: Option<String>, // branch, tag or commit
    pub quant: Option<String>,    // "Q4_K_M", in any case
}

pub const DEFAULT_REVISION: &str = "main";

/// Letters, digits and `more`; not empty, at most 96 bytes, without "..", and not starting with a dot or a dash.
fn good_part(text: &str, more: &str) -> bool {
    (1..=96).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        && !text.contains("..")
        && !text.starts_with(['.', '-', '/'])
        && !text.ends_with('/')
}

impl ModelName {
    pub fn parse(text: &str) -> Result<ModelName, String> {
        let wrong = |what: &str| {
            format!("{text:?}: {what}; allowed: ORG/REPO[@REVISION][:QUANT], of letters, digits and . _ -")
        };
        let (rest, quant) = match text.split_once(':') {
            Some((rest, quant)) if good_part(quant, "._-") => (rest, Some(quant.to_string())),
            Some(_) => return Err(wrong("wrong quantization")),
            None => (text, None),
        };
        let (repo, revision) = match rest.split_once('@') {
            Some((repo, revision)) if good_part(revision, "._-/") => (repo, Some(revision.to_string())),
            Some(_) => return Err(wrong("wrong revision")),
            None => (rest, None),
        };
        match repo.split_once('/') {
            // "--" separates organization and repository in the names of the cache's folders.
            Some((org, name))
                if good_part(org, "._-") && good_part(name, "._-") && !repo.contains("--") => {}
            _ => return Err(wrong("wrong repository")),
        }
        Ok(ModelName { repo: repo.to_string(), revision, quant })
    }

    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let name = ModelName::parse("Qwen/Qwen2.5-0.5B@refs/pr/3:q4_k_m").unwrap();
        assert_eq!(name.repo, "Qwen/Qwen2.5-0.5B");
        assert_eq!(name.revision(), "refs/pr/3");
        assert_eq!(name.quant.as_deref(), Some("q4_k_m"));
        assert_eq!(name.to_string(), "Qwen/Qwen2.5-0.5B@refs/pr/3:q4_k_m");
        let plain = ModelName::parse("a/b").unwrap();
        assert_eq!((plain.revision(), plain.quant.as_deref()), ("main", None));
    }

    #[test]
    fn refuses_what_could_leave_the_cache() {
        for text in [
            "", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b@../x", "a/b@/x", "a/b:", "a/b:q/4", "a--b/c", "a/b c", "a/b@",
            "-a/b", "a/b\n", "a/b:Q4:Q8",
        ] {
            assert!(ModelName::parse(text).is_err(), "{text:?}");
        }
    }
}
