// Settings and histories in the browser's storage.
import type {Figures} from "./answer";
import type {ToolCall} from "./api";

export interface Message {
  role: "user" | "assistant" | "tool";
  content: string;
  reasoning?: string;
  calls?: ToolCall[];
  callId?: string; // of a tool's result
  figures?: Figures;
}
export interface History {
  id: string;
  title: string;
  changed: number; // milliseconds since 1970
  system: string;
  messages: Message[];
}
export interface Settings {
  model: string;
  method: string; // "": auto
  methods: Record<string, Record<string, string>>; // values by method and parameter, as typed
  sampling: Record<string, string>;
  maxTokens: string;
  seed: string;
  stop: string;
  alternatives: string;
  contract: string;
  schema: string;
  tools: string;
}
export const noSettings = (): Settings => ({
  model: "",
  method: "",
  methods: {},
  sampling: {},
  maxTokens: "",
  seed: "",
  stop: "",
  alternatives: "5",
  contract: "",
  schema: "",
  tools: "",
});

const HISTORIES = "tandem.histories";
let onFull: () => void = () => {};
export const whenFull = (call: () => void) => {
  onFull = call;
};

function read<A>(key: string, otherwise: A): A {
  try {
    const text = localStorage.getItem(key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}
export function write(key: string, value: unknown): void {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    onFull();
  }
}

export const loadSettings = (key: string): Settings => ({...noSettings(), ...read(`tandem.settings.${key}`, {})});
export const saveSettings = (key: string, settings: Settings) => write(`tandem.settings.${key}`, settings);
export const loadText = (key: string, otherwise: string): string => read(`tandem.${key}`, otherwise);
export const saveText = (key: string, text: string) => write(`tandem.${key}`, text);

export const loadHistories = (): History[] => {
  const found = read<unknown>(HISTORIES, []);
  return Array.isArray(found) ? found.filter(isHistory) : [];
};
export const saveHistories = (histories: History[]) => write(HISTORIES, histories.filter((h) => h.messages.length > 0));

function isHistory(value: any): value is History {
  return (
    typeof value?.id === "string" &&
    typeof value.title === "string" &&
    typeof value.changed === "number" &&
    typeof value.system === "string" &&
    Array.isArray(value.messages) &&
    value.messages.every((m: any) => ["user", "assistant", "tool"].includes(m?.role) && typeof m.content === "string")
  );
}

export const exported = (histories: History[]) => JSON.stringify({format: "tandem-histories", version: 1, histories}, null, 1);

// The histories of an export. Throws a message.
export function imported(text: string): History[] {
  let value: any;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error((error as Error).message);
  }
  if (value?.format !== "tandem-histories" || value.version !== 1) throw new Error(`format: ${String(value?.format)}`);
  if (!Array.isArray(value.histories)) throw new Error("histories");
  const bad = value.histories.findIndex((one: unknown) => !isHistory(one));
  if (bad >= 0) throw new Error(`histories[${bad}]`);
  return value.histories;
}

export function newHistory(): History {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return {id: `${Date.now()}-${random[0]}`, title: "", changed: Date.now(), system: "", messages: []};
}
