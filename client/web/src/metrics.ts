// Parses the text format of Prometheus, as far as the server writes it.
export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES: Record<string, string> = {"\\n": "\n", '\\"': '"', "\\\\": "\\"};

export function parseMetrics(text: string): Sample[] {
  const out: Sample[] = [];
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (!found) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name!] = value!.replace(/\\[n"\\]/g, (e) => ESCAPES[e]!);
    out.push({name: found[1]!, labels, value: Number(found[3]!.replace("Inf", "Infinity"))});
  }
  return out;
}

// One scrape, by name.
export class Scrape {
  private readonly byName = new Map<string, Sample[]>();
  constructor(
    text: string,
    readonly at: number, // seconds
  ) {
    for (const sample of parseMetrics(text)) {
      const list = this.byName.get(sample.name);
      if (list) list.push(sample);
      else this.byName.set(sample.name, [sample]);
    }
  }
  all(name: string): Sample[] {
    return this.byName.get(name) ?? [];
  }
  // The sum of the samples with these labels.
  sum(name: string, labels: Record<string, string> = {}): number {
    let total = 0;
    for (const one of this.all(name)) {
      if (Object.entries(labels).every(([key, value]) => one.labels[key] === value)) total += one.value;
    }
    return total;
  }
}
