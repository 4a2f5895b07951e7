//! HTTP requests to the hub: one hop at a time, so that the token goes to the hub only, and bodies that cannot stall.
use std::io::Read;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::time::Duration;

const MAX_HOPS: usize = 10;
const CHUNK: usize = 256 << 10;
const CONNECT: Duration = Duration::from_secs(10);

pub struct Response {
    pub url: String, // of the last hop
    inner: ureq::http::Response<ureq::Body>,
}

/// A request without an HTTP answer.
#[derive(Debug)]
pub struct Unreachable(pub String);

pub struct Http {
    agent: ureq::Agent,
    origin: String, // the only one that gets the token
    token: Option<String>,
    stall: Duration, // longest time without a byte
}

/// "https://host:port" of a URL; empty if it is not one.
pub fn origin(url: &str) -> &str {
    let Some(start) = url.find("://").map(|at| at + 3) else { return "" };
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// The target of a Location header of an answer from `base`.
pub fn target(base: &str, location: &str) -> Option<String> {
    let absolute = if location.starts_with("https://") || location.starts_with("http://") {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{}//{rest}", &base[..base.find("//")?])
    } else if location.starts_with('/') {
        format!("{}{location}", origin(base))
    } else {
        return None;
    };
    // A hub with TLS must not send its readers to a place without.
    (!(base.starts_with("https://") && absolute.starts_with("http://"))).then_some(absolute)
}

impl Http {
    pub fn new(endpoint: &str, token: Option<String>, stall: Duration) -> Http {
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier) // those of the system: hubs inside of an organization
            .build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(stall))
            .user_agent(format!("tandem-pull/{}", env!("CARGO_PKG_VERSION")))
            .build();
        Http { agent: config.into(), origin: origin(endpoint).to_string(), token, stall }
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    fn hop(&self, head: bool, url: &str, from: u64) -> Result<Response, Unreachable> {
        let mut request = if head { self.agent.head(url) } else { self.agent.get(url) };
        request = request.header("accept-encoding", "identity");
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| origin(url) == self.origin) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        match request.call() {
            Ok(inner) => Ok(Response { url: url.to_string(), inner }),
            Err(error) => Err(Unreachable(format!("{}: {error}", origin(url)))),
        }
    }

    /// Follows redirects while `follow` says so. from: first byte that is wanted of the body.
    pub fn request(
        &self,
        head: bool,
        url: &str,
        from: u64,
        follow: impl Fn(&Response) -> bool,
    ) -> Result<Response, Unreachable> {
        let mut url = url.to_string();
        for _ in 0..MAX_HOPS {
            let response = self.hop(head, &url, from)?;
            if !(300..400).contains(&response.status()) || !follow(&response) {
                return Ok(response);
            }
            let location = response.header("location").unwrap_or_default().to_string();
            url = target(&url, &location).ok_or_else(|| {
                Unreachable(format!("{}: redirect to {location:?}; allowed: addresses that are not less protected", origin(&url)))
            })?;
        }
        Err(Unreachable(format!("{}: more than {MAX_HOPS} redirects", origin(&url))))
    }

    pub fn get(&self, url: &str, from: u64) -> Result<Response, Unreachable> {
        self.request(false, url, from, |_| true)
    }

    /// The body of an answer in pieces, read on a thread: a connection that gives no bytes for the stall time is an error.
    pub fn body(&self, response: Response) -> Pieces {
        let (to, from) = sync_channel(4);
        let mut reader = response.inner.into_body().into_reader();
        std::thread::spawn(move || loop {
            let mut piece = vec![0; CHUNK];
            let read = reader.read(&mut piece);
            let end = !matches!(read, Ok(n) if n > 0);
            if to.send(read.map(|n| { piece.truncate(n); piece })).is_err() || end {
                return;
            }
        });
        Pieces { from, stall: self.stall }
    }
}

pub struct Pieces {
    from: Receiver<std::io::Result<Vec<u8>>>,
    stall: Duration,
}

impl Pieces {
    /// The next bytes; None at the end of the body.
    pub fn next(&self) -> Result<Option<Vec<u8>>, Unreachable> {
        match self.from.recv_timeout(self.stall) {
            Ok(Ok(piece)) if piece.is_empty() => Ok(None),
            Ok(Ok(piece)) => Ok(Some(piece)),
            Ok(Err(error)) => Err(Unreachable(format!("the connection broke: {error}"))),
            Err(RecvTimeoutError::Timeout) => Err(Unreachable(format!("no bytes for {} s", self.stall.as_secs()))),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
        }
    }
}

impl Response {
    pub fn status(&self) -> u16 {
        self.inner.status().as_u16()
    }
    pub fn header(&self, name: &str) -> Option<&str> {
        self.inner.headers().get(name)?.to_str().ok()
    }
    /// The body as text, of at most `limit` bytes.
    pub fn text(mut self, limit: u64) -> Result<String, Unreachable> {
        let read = self.inner.body_mut().with_config().limit(limit).read_to_string();
        read.map_err(|e| Unreachable(format!("{}: {e}", origin(&self.url))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        assert_eq!(origin("https://a:8/b/c"), "https://a:8");
        assert_eq!(origin("http://a?x"), "http://a");
        assert_eq!(origin("a/b"), "");
    }

    #[test]
    fn targets() {
        assert_eq!(target("https://a/b", "/c?d").as_deref(), Some("https://a/c?d"));
        assert_eq!(target("https://a/b", "//c/d").as_deref(), Some("https://c/d"));
        assert_eq!(target("http://a/b", "https://c/").as_deref(), Some("https://c/"));
        assert_eq!(target("https://a/b", "http://c/"), None);
        assert_eq!(target("https://a/b", "file:///c"), None);
    }
}
