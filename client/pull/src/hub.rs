//! What a hub says about a repository and its files.
use std::path::PathBuf;
use std::time::Duration;

use crate::cache;
use crate::http::{origin, Http, Response, Unreachable};
use crate::name::ModelName;
use crate::select::good_path;

const STALL: Duration = Duration::from_secs(30);
const MAX_LISTING: u64 = 64 << 20;

pub struct Hub {
    pub endpoint: String,
    pub cache: PathBuf,
    pub offline: bool,
    pub http: Http,
}

/// A revision of a repository.
pub struct Listing {
    pub commit: String,
    pub files: Vec<String>,
}

/// A file at a commit.
#[derive(Clone, Debug)]
pub struct FileInfo {
    pub name: String,
    pub url: String,
    pub etag: String, // SHA-256 of large files, Git's SHA-1 of others
    pub size: u64,
}

pub enum HubError {
    /// No answer, or an answer that says to come again: the cache may help.
    Unreachable(String),
    Refused(String),
}

impl From<Unreachable> for HubError {
    fn from(error: Unreachable) -> HubError {
        HubError::Unreachable(error.0)
    }
}

/// A part of a URL's path; slashes too are escaped, as the hub wants it of revisions.
fn escape(text: &str, keep: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.as_bytes().contains(&byte) {
            out.push(byte as char);
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

impl Hub {
    pub fn from_environment() -> Result<Hub, String> {
        let endpoint = cache::endpoint();
        if !["http://", "https://"].iter().any(|s| endpoint.starts_with(s)) || origin(&endpoint).len() < 8 {
            return Err(format!("HF_ENDPOINT: {endpoint:?}; allowed: https://HOST or http://HOST"));
        }
        let token = cache::token();
        if token.as_ref().is_some_and(|t| !t.bytes().all(|b| b.is_ascii_graphic())) {
            return Err("HF_TOKEN: a token with other characters than visible ASCII".into()); // not printed: secret
        }
        Ok(Hub {
            http: Http::new(&endpoint, token, STALL),
            cache: cache::folder(),
            offline: cache::offline(),
            endpoint,
        })
    }

    /// The error of an answer other than 2xx. what: the file or revision.
    fn refusal(&self, name: &ModelName, response: &Response, what: &str) -> HubError {
        let page = format!("{}/{}", self.endpoint, name.repo);
        let code = response.header("x-error-code").unwrap_or_default();
        let status = response.status();
        let token = if self.http.has_token() { "the token of HF_TOKEN" } else { "no token is set" };
        HubError::Refused(match (status, code) {
            (408 | 429 | 500..=599, _) => {
                return HubError::Unreachable(format!("{} answers {status}", self.endpoint));
            }
            (_, "GatedRepo") if self.http.has_token() => format!(
                "the repository is gated, and {token} may not read it: request access at {page} with the token's account"
            ),
            (_, "GatedRepo") => format!(
                "the repository is gated: accept its terms at {page}, create a token at {}/settings/tokens, and set HF_TOKEN",
                self.endpoint
            ),
            (_, "RevisionNotFound") => format!("no revision {:?}; {page}/tree/main lists them", name.revision()),
            (_, "EntryNotFound") => format!("no file {what}"),
            (404, _) | (401, _) => format!(
                "no such repository at {}, or it is private ({token}): check the name at {page}, or set HF_TOKEN",
                self.endpoint
            ),
            (403, _) => format!("{} refuses {what} ({token}): {}", self.endpoint,
                response.header("x-error-message").unwrap_or("status 403")),
            _ => format!("{} answers {status} for {what}", self.endpoint),
        })
    }

    pub fn listing(&self, name: &ModelName) -> Result<Listing, HubError> {
        let url = format!("{}/api/models/{}/revision/{}", self.endpoint, name.repo, escape(name.revision(), ""));
        let response = self.http.get(&url, 0)?;
        if response.status() != 200 {
            return Err(self.refusal(name, &response, "the repository"));
        }
        let wrong = |what: &str| HubError::Refused(format!("{url}: {what}"));
        let text = response.text(MAX_LISTING)?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| wrong(&e.to_string()))?;
        let commit = value["sha"].as_str().unwrap_or_default().to_string();
        if !cache::is_commit(&commit) {
            return Err(wrong("sha is not a commit"));
        }
        let files = value["siblings"].as_array().ok_or_else(|| wrong("siblings is missing"))?;
        let files = files.iter().filter_map(|f| f["rfilename"].as_str());
        Ok(Listing { commit, files: files.filter(|f| good_path(f)).map(str::to_string).collect() })
    }

    pub fn file(&self, name: &ModelName, commit: &str, file: &str) -> Result<FileInfo, HubError> {
        let url = format!("{}/{}/resolve/{commit}/{}", self.endpoint, name.repo, escape(file, "/"));
        // The answer that leads to the storage of large files has their checksum and size.
        let response = self.http.request(true, &url, 0, |r| r.header("x-linked-etag").is_none())?;
        if response.status() >= 400 {
            return Err(self.refusal(name, &response, file));
        }
        let header = |linked: &str, own: &str| response.header(linked).or(response.header(own)).map(str::to_string);
        let etag = header("x-linked-etag", "etag").unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
        let size = header("x-linked-size", "content-length").and_then(|s| s.parse().ok());
        let good = (8..=128).contains(&etag.len()) && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        match size {
            Some(size) if good => Ok(FileInfo { name: file.to_string(), url, etag, size }),
            _ => Err(HubError::Refused(format!("{url}: the answer has no usable ETag or no size (status {})", response.status()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(escape("refs/pr/3", ""), "refs%2Fpr%2F3");
        assert_eq!(escape("a b/c%.gguf", "/"), "a%20b/c%25.gguf");
    }
}
