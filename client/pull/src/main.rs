//! tandem-pull: fetches models from a Hugging Face hub into the cache that all Hugging Face tools share, and prints their paths.
//!
//! A program of its own, for two reasons. The server that runs it keeps neither a TLS stack nor network code in its process, and a
//! kill ends a download at any time without harm.
//!
//! It uses `ureq` and not the crate `hf-hub`. Version 1.0 of that crate starts every interrupted download again, does not compare
//! checksums, and brings 280 crates (an asynchronous runtime and an upload client); this program has 45.
//!
//! Exit status: 0 success, 1 a model cannot be had, 2 wrong command line. Standard output has one path per model, in the order of the
//! arguments: of the (first) GGUF file, or of a directory with config.json. Progress and errors go to standard error.
mod cache;
mod download;
mod http;
mod hub;
mod name;
mod progress;
mod select;

use std::process::ExitCode;

use name::ModelName;
use progress::Progress;

const HELP: &str = "tandem-pull: fetches models from a Hugging Face hub and prints their paths.

Usage: tandem-pull ORG/REPO[@REVISION][:QUANT] ... [flags]

  tandem-pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0
  tandem-pull HuggingFaceTB/SmolLM2-135M-Instruct@main

QUANT selects a GGUF file, as in llama.cpp: default Q4_K_M, else Q8_0, else the first file.
A repository without GGUF files is fetched as safetensors. An interrupted download continues.

Flags:
  --quiet    print no progress
  --version  print the version and exit
  --help     print this help and exit

Environment:
  HF_ENDPOINT      address of the hub (default https://huggingface.co)
  HF_TOKEN         access token, for gated and private repositories; else the file HF_TOKEN_PATH,
                   default HF_HOME/token
  HF_HUB_CACHE     cache folder (default HF_HOME/hub)
  HF_HOME          default ~/.cache/huggingface
  HF_HUB_OFFLINE   1: use only the cache

Exit status: 0 success, 1 a model cannot be had, 2 wrong command line.
";

fn usage(message: &str) -> ExitCode {
    eprintln!("tandem-pull: {message}");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    // A write beyond RLIMIT_FSIZE then fails with EFBIG, which the download reports.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut names = Vec::new();
    let mut quiet = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--version" => {
                println!("tandem-pull {}", env!("CARGO_PKG_VERSION"));
                return ExitCode::SUCCESS;
            }
            "--quiet" => quiet = true,
            flag if flag.starts_with('-') => {
                return usage(&format!("unknown flag {flag:?}; allowed: --quiet, --version, --help"));
            }
            name => match ModelName::parse(name) {
                Ok(name) => names.push(name),
                Err(message) => return usage(&message),
            },
        }
    }
    if names.is_empty() {
        return usage("no model; allowed: ORG/REPO[@REVISION][:QUANT] (see --help)");
    }
    let hub = match hub::Hub::from_environment() {
        Ok(hub) => hub,
        Err(message) => return usage(&message),
    };
    let mut progress = Progress::new(quiet);
    for name in names {
        match download::pull(&hub, &name, &mut progress) {
            Ok(path) => println!("{}", path.display()),
            Err(message) => {
                progress.end_line();
                eprintln!("tandem-pull: {name}: {message}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
