// Requests from settings as they were typed. The server checks the values and names a wrong one.
import type {Model, OfferedMethod, Parameter} from "./api";
import {methodWord} from "./api";
import type {Settings} from "./store";
import {T} from "./text";

export type Kind = "switch" | "integer" | "number" | "choice" | "text" | "texts";

export function kindOf(parameter: Parameter): Kind {
  return (parameter.type ?? "PARAMETER_TYPE_TEXT").replace("PARAMETER_TYPE_", "").toLowerCase() as Kind;
}

export function valueOf(parameter: Parameter, typed: string): unknown {
  const text = typed.trim();
  switch (kindOf(parameter)) {
    case "switch":
      return text === "true";
    case "integer":
    case "number":
      if (/^\+?inf(inity)?$/i.test(text)) return "Infinity";
      return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
    case "texts":
      return typed.split("\n").filter((line) => line !== "");
    default:
      return text;
  }
}

// The values of the parameters that are set.
export function valuesOf(parameters: Parameter[], typed: Record<string, string>): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const one of parameters) {
    const text = typed[one.name] ?? "";
    if (text !== "") out[one.name] = valueOf(one, text);
  }
  return out;
}

export const methodsOf = (model: Model | undefined): OfferedMethod[] => model?.tandem.methods ?? [];

export const offeredMethod = (model: Model | undefined, method: string) =>
  methodsOf(model).find((one) => methodWord(one.method) === method);

// The member `tandem` that selects a method. The deployment chooses if it does not offer the method, or if that is empty.
export function methodMembers(model: Model, method: string, typed: Record<string, Record<string, string>>): Record<string, unknown> {
  const offered = offeredMethod(model, method);
  if (!offered) return {};
  const values = valuesOf(offered.parameters ?? [], typed[method] ?? {});
  return Object.keys(values).length > 0 ? {[method]: values} : {method};
}

const OF_OPENAI = new Set(["temperature", "top_p", "presence_penalty", "frequency_penalty"]);

function parsed(field: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(T.errors.json(field, (error as Error).message));
  }
}

// All members but the prompt. Throws a message.
export function bodyOf(settings: Settings, model: Model, chat: boolean): Record<string, unknown> {
  const body: Record<string, unknown> = {model: model.id, stream: true, stream_options: {include_usage: true}};
  const tandem: Record<string, unknown> = {tokens: true, trace: true, ...methodMembers(model, settings.method, settings.methods)};
  const sampling = valuesOf(model.tandem.sampling ?? [], settings.sampling);
  for (const [name, value] of Object.entries(sampling)) (OF_OPENAI.has(name) ? body : tandem)[name] = value;
  const number = (text: string) => (Number.isFinite(Number(text)) ? Number(text) : text);
  const alternatives = settings.alternatives === "" ? 0 : number(settings.alternatives);
  if (chat) {
    body.logprobs = true;
    body.top_logprobs = alternatives;
  } else {
    body.logprobs = alternatives;
  }
  if (settings.maxTokens !== "") body.max_tokens = number(settings.maxTokens);
  if (settings.seed !== "") body.seed = settings.seed.trim();
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) body.stop = stop;
  if (settings.contract !== "") tandem.contract = settings.contract;
  if (settings.schema.trim() !== "") {
    body.response_format = {
      type: "json_schema",
      json_schema: {name: "answer", strict: true, schema: parsed(T.settings.schema, settings.schema)},
    };
  }
  if (chat && settings.tools.trim() !== "") body.tools = parsed(T.settings.tools, settings.tools);
  body.tandem = tandem;
  return body;
}
