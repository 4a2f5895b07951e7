// Forms of models, methods and parameters, built from what the deployments offer.
import {useId} from "preact/hooks";
import type {Model, Parameter} from "./api";
import {contractWord, methodWord} from "./api";
import {contractName} from "./answer_view";
import {kindOf, methodsOf, offeredMethod} from "./request";
import type {Settings} from "./store";
import {T} from "./text";

interface FieldProps {
  label: string;
  help?: string;
  value: string;
  onChange: (value: string) => void;
  rows?: number;
  mono?: boolean;
  placeholder?: string;
  numeric?: boolean;
}
export function Field({label, help, value, onChange, rows, mono, placeholder, numeric}: FieldProps) {
  const id = useId();
  const common = {
    id,
    value,
    placeholder,
    "aria-describedby": help ? `${id}-help` : undefined,
    class: mono ? "mono" : undefined,
    spellcheck: false,
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {rows ? (
        <textarea {...common} rows={rows} onInput={(event) => onChange(event.currentTarget.value)} />
      ) : (
        <input
          {...common}
          type="text"
          inputMode={numeric ? "decimal" : undefined}
          autocomplete="off"
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
      {help && <small id={`${id}-help`}>{help}</small>}
    </div>
  );
}

interface ChoiceProps {
  label: string;
  help?: string;
  value: string;
  options: [string, string][]; // value, text
  onChange: (value: string) => void;
}
export function Choice({label, help, value, options, onChange}: ChoiceProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} aria-describedby={help ? `${id}-help` : undefined} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([key, text]) => (
          <option key={key} value={key}>{text}</option>
        ))}
      </select>
      {help && <small id={`${id}-help`}>{help}</small>}
    </div>
  );
}

export function ParameterFields({parameters, values, onChange}: {
  parameters: Parameter[];
  values: Record<string, string>;
  onChange: (values: Record<string, string>) => void;
}) {
  return (
    <>
      {parameters.map((one) => {
        const help = `${one.meaning} ${T.settings.allowed(one.allowed)}`;
        const value = values[one.name] ?? "";
        const set = (next: string) => onChange({...values, [one.name]: next});
        const unset = T.settings.defaultOf(one.default_value);
        switch (kindOf(one)) {
          case "switch":
            return (
              <Choice key={one.name} label={one.name} help={help} value={value} onChange={set}
                options={[["", unset], ["true", T.settings.on], ["false", T.settings.off]]} />
            );
          case "choice":
            return (
              <Choice key={one.name} label={one.name} help={help} value={value} onChange={set}
                options={[["", unset], ...(one.choices ?? []).map((choice): [string, string] => [choice, choice])]} />
            );
          case "texts":
            return <Field key={one.name} label={one.name} help={help} value={value} onChange={set} rows={2} placeholder={unset} />;
          case "text":
            return <Field key={one.name} label={one.name} help={help} value={value} onChange={set} placeholder={unset} />;
          default:
            return <Field key={one.name} label={one.name} help={help} value={value} onChange={set} placeholder={unset} numeric />;
        }
      })}
    </>
  );
}

export const modelOptions = (models: Model[]) => models.map((one): [string, string] => [one.id, one.id]);
export function methodOptions(model: Model | undefined): [string, string][] {
  const chosen = methodWord(model?.tandem.default_method ?? "");
  return [["", T.settings.auto(chosen)], ...methodsOf(model).map((one): [string, string] => [methodWord(one.method), methodWord(one.method)])];
}

// The method and its parameters.
export function MethodForm({model, method, values, onMethod, onValues}: {
  model: Model | undefined;
  method: string;
  values: Record<string, Record<string, string>>;
  onMethod: (method: string) => void;
  onValues: (values: Record<string, Record<string, string>>) => void;
}) {
  const offered = offeredMethod(model, method);
  const parameters = offered?.parameters ?? [];
  return (
    <>
      <Choice label={T.settings.method} value={offered ? method : ""} options={methodOptions(model)} onChange={onMethod}
        help={offered && T.settings.guarantee(contractName(contractWord(offered.greedy_contract)), contractName(contractWord(offered.sampled_contract)))} />
      {offered && (
        <details class="group">
          <summary>{T.settings.parameters(method)}</summary>
          {parameters.length === 0 && <p class="note">{T.settings.noParameters}</p>}
          <ParameterFields parameters={parameters} values={values[method] ?? {}} onChange={(next) => onValues({...values, [method]: next})} />
        </details>
      )}
    </>
  );
}

export function SamplingForm({model, value, onChange, full}: {
  model: Model | undefined;
  value: Settings;
  onChange: (value: Settings) => void;
  full: boolean; // also fields of one answer
}) {
  const set = (name: keyof Settings) => (text: string) => onChange({...value, [name]: text});
  return (
    <>
      <Field label={T.settings.maxTokens} help={T.settings.maxTokensHelp} value={value.maxTokens} onChange={set("maxTokens")} numeric />
      <details class="group">
        <summary>{T.settings.sampling}</summary>
        <ParameterFields parameters={model?.tandem.sampling ?? []} values={value.sampling} onChange={(sampling) => onChange({...value, sampling})} />
        <Field label={T.settings.seed} help={T.settings.seedHelp} value={value.seed} onChange={set("seed")} numeric />
        <Field label={T.settings.stop} help={T.settings.stopHelp} value={value.stop} onChange={set("stop")} rows={2} />
        <Field label={T.settings.alternatives} help={T.settings.alternativesHelp} value={value.alternatives} onChange={set("alternatives")} numeric />
      </details>
      {full && (
        <details class="group">
          <summary>{T.settings.output}</summary>
          <Choice label={T.settings.contract} help={T.settings.contractHelp} value={value.contract} onChange={set("contract")}
            options={[["", T.contracts.any!], ...Object.entries(T.contracts).filter(([key]) => key !== "any")]} />
          <Field label={T.settings.schema} help={T.settings.schemaHelp} value={value.schema} onChange={set("schema")} rows={4} mono />
          <Field label={T.settings.tools} help={T.settings.toolsHelp} value={value.tools} onChange={set("tools")} rows={4} mono />
        </details>
      )}
    </>
  );
}
