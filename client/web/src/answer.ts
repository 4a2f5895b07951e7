// An answer while it is streamed, and its figures.
import {ApiError, stream, type Delta, type Ending, type Model, type Stats, type Token, type ToolCall, type Trace, type Usage} from "./api";
import {Characters} from "./safe";
import {T} from "./text";

export interface Figures {
  method?: string;
  contract?: string;
  seed?: string;
  finish?: string;
  tokens: number;
  rate: number; // tokens per second; 0: unknown
  perPass?: number;
  acceptance?: number; // of drafts, in [0, 1]; unset: none was verified
  first?: number; // seconds
  total?: number;
  largePasses?: number;
  smallPasses?: number;
  satisfied?: boolean;
}

// As `tandem compare` and the terminal compute them.
export function decodeRate(tokens: number, seconds: number): number {
  return tokens > 1 && seconds > 1e-3 ? (tokens - 1) / seconds : 0;
}
export function acceptanceOf(stats: Stats): number | undefined {
  const accepted = (stats.accept_lengths ?? []).reduce((sum, count, i) => sum + i * count, 0);
  return stats.draft_tokens ? accepted / stats.draft_tokens : undefined;
}

export function originOf(token: Token): string {
  if (token.corrected) return "corrected";
  switch (token.proposed) {
    case "small":
      return token.confirmed === "small" ? "unchecked" : "small";
    case "mask":
      return token.index === 0 ? "mask1" : token.index === 1 ? "mask2" : "mask3";
    case "ngram":
      return "ngram";
    case "early_head":
      return "other";
    case "grammar":
      return "grammar";
    default:
      return "large";
  }
}

export class Answer {
  text = "";
  reasoning = "";
  calls: ToolCall[] = [];
  tokens: Token[] = [];
  counts: Record<string, number> = {}; // of tokens by origin
  finish = "";
  stats?: Stats;
  trace?: Trace;
  ending?: Ending;
  usage?: Usage;
  error?: string;
  state: "running" | "done" | "stopped" | "failed" = "running";
  readonly began = performance.now();
  private first = 0;
  private last = 0;
  private readonly characters = new Characters();
  private readonly listeners = new Set<() => void>();
  private frame = 0;

  // Called at most once a frame, and once at the end.
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
  private changed(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of [...this.listeners]) listener();
    });
  }

  add(delta: Delta): void {
    if (delta.text) this.text += delta.text;
    if (delta.reasoning) this.reasoning += delta.reasoning;
    for (const part of delta.calls ?? []) {
      const call = (this.calls[part.index] ??= {id: "", name: "", arguments: ""});
      call.id ||= part.id ?? "";
      call.name ||= part.name ?? "";
      call.arguments += part.arguments ?? "";
    }
    for (const one of delta.tokens ?? []) {
      one.text = this.characters.next(one.text, one.bytes);
      const origin = originOf(one);
      this.tokens.push(one);
      this.counts[origin] = (this.counts[origin] ?? 0) + 1;
    }
    if (delta.tokens?.length || delta.text) {
      this.last = performance.now();
      this.first ||= this.last;
    }
    if (delta.finish) this.finish = delta.finish;
    this.stats = delta.stats ?? this.stats;
    this.trace = delta.trace ?? this.trace;
    this.ending = delta.ending ?? this.ending;
    this.usage = delta.usage ?? this.usage;
    this.changed();
  }

  end(state: "done" | "stopped" | "failed", error?: string): void {
    this.state = state;
    this.error = error;
    this.calls = this.calls.filter(Boolean);
    this.changed();
  }

  figures(): Figures {
    const stats = this.stats;
    const tokens = this.usage?.completion_tokens ?? this.tokens.length;
    const measured = decodeRate(tokens, (this.last - this.first) / 1000);
    const known = stats?.decode_seconds !== undefined;
    const first = stats?.time_to_first_token_seconds ?? (this.first ? (this.first - this.began) / 1000 : undefined);
    return {
      method: this.ending?.method,
      contract: this.ending?.contract,
      seed: this.ending?.seed,
      finish: this.state === "stopped" ? T.chat.stopped : this.finish,
      tokens,
      rate: known ? decodeRate(tokens, stats!.decode_seconds!) : measured,
      perPass: stats?.tokens_per_pass ?? this.ending?.tokens_per_pass,
      acceptance: stats ? acceptanceOf(stats) : undefined,
      first,
      total: known && first !== undefined ? first + stats!.decode_seconds! : undefined,
      largePasses: stats?.large_passes,
      smallPasses: stats?.small_passes,
      satisfied: this.ending?.constraint_satisfied,
    };
  }
}

export function messageOf(error: unknown): string {
  if (!(error instanceof ApiError)) return String((error as Error)?.message ?? error);
  if (error.kind === "network") return T.errors.network;
  if (error.kind === "lost") return T.errors.lost;
  return error.message || T.errors.http(error.status);
}

// Streams into `answer` until its end, an error, or abort().
export async function run(answer: Answer, path: string, body: unknown, signal: AbortSignal): Promise<void> {
  try {
    await stream(path, body, signal, (delta) => answer.add(delta));
    answer.end("done");
  } catch (error) {
    signal.aborted ? answer.end("stopped") : answer.end("failed", messageOf(error));
  }
}

export const hasChat = (model: Model | undefined) => model?.tandem.has_chat_template ?? false;
