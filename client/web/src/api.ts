// The HTTP API: types, requests, streams. docs/http_api.md describes it. Paths are relative, so that the page works below a prefix.

export interface Parameter {
  name: string;
  allowed: string;
  default_value: string;
  meaning: string;
  type?: string; // "PARAMETER_TYPE_NUMBER"
  min?: number | string;
  max?: number | string;
  min_excluded?: boolean;
  choices?: string[];
}
export interface OfferedMethod {
  method: string; // "METHOD_BILD"
  greedy_contract: string;
  sampled_contract: string;
  parameters?: Parameter[];
}
export interface Component {
  role: string;
  name: string;
  architecture: string;
  device: string;
  dtype: string;
  parameter_count: string;
  weight_bytes: string;
  layer_count: number;
  device_lost?: boolean;
}
export interface Model {
  id: string;
  tandem: {
    default_method: string;
    has_chat_template?: boolean;
    limits: {vocab_size: number; context_length: number; max_new_tokens: number};
    components: Component[];
    methods: OfferedMethod[];
    sampling_parameters?: Parameter[];
  };
}
export interface Token {
  id: number;
  text: string;
  proposed: string;
  confirmed: string;
  corrected?: boolean;
  pass?: number;
  logprob?: number;
  index?: number;
  bytes?: number[]; // of a part of a character
  top?: Alternative[];
}
export interface Alternative {
  token: string;
  logprob: number;
}
export interface Stats {
  large_passes?: number;
  small_passes?: number;
  tokens_per_pass?: number;
  accept_lengths?: number[];
  draft_tokens?: number;
  decode_seconds?: number;
  time_to_first_token_seconds?: number;
}
export interface Pass {
  pass: number;
  start_us: number;
  end_us: number;
  role: string;
  kind: string;
  rows: number;
  batch_requests: number;
  accepted: number;
  rejected: number;
}
export interface Trace {
  passes: Pass[];
  omitted: number;
}
export interface Ending {
  method: string;
  contract: string;
  seed: string;
  tokens_per_pass: number;
  stop_sequence?: string;
  constraint_satisfied?: boolean;
}
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
}

// What one event of a stream adds to an answer.
export interface Delta {
  text?: string;
  reasoning?: string;
  calls?: {index: number; id?: string; name?: string; arguments?: string}[];
  tokens?: Token[];
  finish?: string;
  stats?: Stats;
  trace?: Trace;
  ending?: Ending;
  usage?: Usage;
}

export class ApiError extends Error {
  constructor(
    readonly kind: "network" | "lost" | "http" | "stream",
    message: string,
    readonly status = 0,
    readonly code = "",
  ) {
    super(message);
  }
}

// --- The token of the user

const KEY = "tandem.token";
let onTokenNeeded: (wrong: boolean) => void = () => {};
export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value: string) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
  whenNeeded: (call: (wrong: boolean) => void) => {
    onTokenNeeded = call;
  },
};

async function request(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = {};
  const sent = token.get();
  if (sent) headers["Authorization"] = `Bearer ${sent}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("network", "");
  }
  if (answer.ok) return answer;
  const text = await answer.text().catch(() => "");
  if (answer.status === 401) onTokenNeeded(sent !== "");
  throw errorOf(text, answer.status);
}

function errorOf(text: string, status: number): ApiError {
  try {
    const error = JSON.parse(text).error;
    if (typeof error?.message === "string") return new ApiError("http", error.message, status, error.code ?? "");
  } catch {
    // not JSON
  }
  return new ApiError("http", "", status);
}

export async function listModels(signal?: AbortSignal): Promise<Model[]> {
  return (await (await request("v1/models", undefined, signal)).json()).data;
}
export async function version(): Promise<string> {
  return (await (await request("version")).json()).version;
}
export async function metrics(signal?: AbortSignal): Promise<string> {
  return (await request("metrics", undefined, signal)).text();
}
export async function complete(body: unknown, signal?: AbortSignal): Promise<any> {
  return (await request("v1/completions", body, signal)).json();
}

// --- Streams

// Chats list alternatives with each token, completions as objects beside the tokens.
export function alternativesOf(logprobs: any, i: number): Alternative[] {
  const listed: any[] | undefined = logprobs?.content?.[i]?.top_logprobs;
  if (listed) return listed.map((one) => ({token: one.token, logprob: one.logprob}));
  const named: Record<string, number> = logprobs?.top_logprobs?.[i] ?? {};
  return Object.entries(named)
    .map(([token, logprob]) => ({token, logprob}))
    .sort((a, b) => b.logprob - a.logprob);
}

function tokensOf(choice: any): Token[] | undefined {
  const tokens: any[] | undefined = choice.tandem?.tokens;
  if (tokens === undefined) return undefined;
  return tokens.map((one, i) => ({...one, top: alternativesOf(choice.logprobs, i)}));
}

function deltaOf(event: any): Delta {
  const out: Delta = {};
  if (event.usage) out.usage = event.usage;
  if (event.tandem) out.ending = event.tandem;
  const choice = event.choices?.[0];
  if (!choice) return out;
  const delta = choice.delta ?? {content: choice.text};
  if (delta.content) out.text = delta.content;
  if (delta.reasoning_content) out.reasoning = delta.reasoning_content;
  if (delta.tool_calls) {
    out.calls = delta.tool_calls.map((call: any) => ({
      index: call.index,
      id: call.id,
      name: call.function?.name,
      arguments: call.function?.arguments,
    }));
  }
  out.tokens = tokensOf(choice);
  if (choice.finish_reason) out.finish = choice.finish_reason;
  if (choice.tandem?.stats) out.stats = choice.tandem.stats;
  if (choice.tandem?.trace) out.trace = choice.tandem.trace;
  return out;
}

// Streams an answer. Rejects with ApiError, or with the reason of `signal`. Without its end marker a stream was cut off.
export async function stream(path: string, body: unknown, signal: AbortSignal, on: (delta: Delta) => void): Promise<void> {
  const answer = await request(path, body, signal);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let piece: ReadableStreamReadResult<string>;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new ApiError("lost", "");
    }
    if (piece.done) throw new ApiError("lost", "");
    const lines = (rest + piece.value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") {
        void reader.cancel().catch(() => {});
        return;
      }
      const event = JSON.parse(data);
      if (event.error) throw new ApiError("stream", String(event.error.message), 0, event.error.code ?? "");
      on(deltaOf(event));
    }
  }
}

export const methodWord = (name: string) => name.replace(/^METHOD_/, "").toLowerCase();
export const contractWord = (name: string) => name.replace(/^CONTRACT_/, "").toLowerCase();
