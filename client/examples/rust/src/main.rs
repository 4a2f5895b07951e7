//! Streams a completion from a Tandem server:
//!
//!     cargo run -- --model=code --prompt='def fib(n):' --max-new-tokens=64
//!
//! Writes the text to standard output as it arrives, and the end of the request to standard error.
//! Ctrl-C cancels the request. A call to a full or restarting server is retried after the delay of the
//! trailer `grpc-retry-pushback-ms`. TANDEM_TOKEN is sent as the bearer token.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

mod v1 {
    tonic::include_proto!("tandem.v1");
}
use v1::generate_request::Prompt;
use v1::generate_response::Event;
use v1::generation_client::GenerationClient;
use v1::{FinishReason, GenerateRequest};

const ATTEMPTS: u32 = 5;
const USAGE: &str =
    "usage: example --model=NAME --prompt=TEXT [--server=HOST:PORT] [--max-new-tokens=N] \
                     [--seed=N] [--ignore-eos=BOOL] [--request-id=ID]";

/// A field that is `None` follows the model's default, which differs from zero.
fn arguments() -> Result<(String, GenerateRequest), String> {
    let mut server = std::env::var("TANDEM_SERVER").unwrap_or("127.0.0.1:50051".into());
    let mut request = GenerateRequest {
        max_new_tokens: Some(64),
        ..Default::default()
    };
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').ok_or(USAGE)?;
        let number = || format!("{name}: {value:?}; allowed: an integer");
        match name {
            "--server" => server = value.into(),
            "--model" => request.model = value.into(),
            "--prompt" => request.prompt = Some(Prompt::Text(value.into())),
            "--max-new-tokens" => {
                request.max_new_tokens = Some(value.parse().map_err(|_| number())?)
            }
            "--seed" => request.seed = Some(value.parse().map_err(|_| number())?),
            "--ignore-eos" => {
                request.ignore_eos = Some(
                    value
                        .parse()
                        .map_err(|_| format!("{name}: {value:?}; allowed: true, false"))?,
                )
            }
            "--request-id" => request.request_id = value.into(),
            _ => return Err(format!("{name}: unknown\n{USAGE}")),
        }
    }
    if request.model.is_empty() || request.prompt.is_none() {
        return Err(USAGE.into());
    }
    Ok((server, request))
}

/// Writes the text as it arrives. `begun`: some text has arrived, so a retry would repeat it.
async fn generate(
    client: &mut GenerationClient<Channel>,
    request: &GenerateRequest,
    begun: &mut bool,
) -> Result<(), Status> {
    let mut call = Request::new(request.clone());
    if let Ok(token) = std::env::var("TANDEM_TOKEN") {
        let value = MetadataValue::try_from(format!("Bearer {token}"));
        call.metadata_mut().insert(
            "authorization",
            value.map_err(|e| Status::internal(e.to_string()))?,
        );
    }
    let mut stream = client.generate(call).await?.into_inner();
    while let Some(response) = stream.message().await? {
        match response.event {
            Some(Event::Chunk(chunk)) => {
                *begun = true;
                print!("{}", chunk.text);
                std::io::stdout()
                    .flush()
                    .map_err(|e| Status::internal(e.to_string()))?;
            }
            Some(Event::Finished(end)) => {
                let reason = FinishReason::try_from(end.finish_reason)
                    .unwrap_or_default()
                    .as_str_name();
                let tokens = end.usage.unwrap_or_default().completion_tokens;
                let reason = reason.trim_start_matches("FINISH_REASON_");
                eprintln!("\n[{reason}: {tokens} tokens, seed {}]", end.seed);
            }
            _ => {}
        }
    }
    Ok(())
}

/// The delay after which the server permits a retry, if it does.
fn retry_delay(status: &Status) -> Option<Duration> {
    if !matches!(status.code(), Code::ResourceExhausted | Code::Unavailable) {
        return None;
    }
    let value = status
        .metadata()
        .get("grpc-retry-pushback-ms")?
        .to_str()
        .ok()?;
    value.parse().ok().map(Duration::from_millis) // -1, a retry that is useless, is no u64
}

async fn generate_with_retries(server: &str, request: &GenerateRequest) -> Result<(), Status> {
    let endpoint = Endpoint::try_from(format!("http://{server}"))
        .map_err(|e| Status::invalid_argument(format!("--server: {server:?}: {e}")))?;
    let mut client = GenerationClient::new(endpoint.connect_lazy());
    let mut attempt = 1;
    loop {
        let mut begun = false;
        let Err(status) = generate(&mut client, request, &mut begun).await else {
            return Ok(());
        };
        match retry_delay(&status) {
            Some(delay) if !begun && attempt < ATTEMPTS => {
                eprintln!("[full: retry in {delay:?}]");
                tokio::time::sleep(delay).await;
                attempt += 1;
            }
            _ => return Err(status),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let (server, request) = match arguments() {
        Ok(found) => found,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    // The future that is not finished is dropped, which cancels the request on the server.
    let done = tokio::select! {
        done = generate_with_retries(&server, &request) => done,
        _ = tokio::signal::ctrl_c() => Err(Status::cancelled("interrupted")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(status) => {
            eprintln!("{:?}: {}", status.code(), status.message());
            ExitCode::FAILURE
        }
    }
}
