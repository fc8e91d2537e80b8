// The model a run starts from: a kept one of another run, or a file from this computer.
import { useEffect, useState } from "preact/hooks";
import { type Run, type RunDetail, get } from "./api";
import { type Uploaded, uploadModel } from "./admin-api";
import { bytes, count } from "./format";
import { Command } from "./parts";

export interface Source {
  run?: string;
  version?: number;
  upload?: string;
}

interface Props {
  runs: Run[];
  preferred: string;
  largest: number;
  choose: (source: Source | null, words: string) => void;
}

export function ModelChoice({ runs, preferred, largest, choose }: Props) {
  const [kind, setKind] = useState<"run" | "file">(runs.length ? "run" : "file");
  return (
    <fieldset class="whole source">
      <legend>Model to start from</legend>
      {runs.length > 0 && (
        <div class="row kinds">
          <label class="check">
            <input type="radio" name="source" checked={kind === "run"} onChange={() => setKind("run")} /> kept by a run
          </label>
          <label class="check">
            <input type="radio" name="source" checked={kind === "file"} onChange={() => setKind("file")} /> a file
          </label>
        </div>
      )}
      {kind === "run" ? (
        <Kept runs={runs} preferred={preferred} choose={choose} />
      ) : (
        <FromFile runs={runs} largest={largest} choose={choose} />
      )}
    </fieldset>
  );
}

function Kept({ runs, preferred, choose }: Pick<Props, "runs" | "preferred" | "choose">) {
  const [name, setName] = useState(preferred || runs[0]!.name);
  const [detail, setDetail] = useState<RunDetail | null>(null);
  const [version, setVersion] = useState<number | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (preferred) setName(preferred);
  }, [preferred]);
  useEffect(() => {
    let late = false;
    choose(null, "");
    setProblem("");
    get<RunDetail>(`/runs/${name}`).then(
      (answer) => {
        if (late) return;
        setDetail(answer);
        setVersion(answer.models.find((model) => model.best)?.version ?? answer.models.at(-1)?.version ?? null);
      },
      (error: Error) => late || setProblem(error.message),
    );
    return () => {
      late = true;
    };
  }, [name]);
  useEffect(() => {
    if (detail && version != null) choose({ run: name, version }, `version ${version} of ${name}`);
  }, [detail, version]);
  return (
    <>
      <label>
        Model of run
        <select value={name} onChange={(event) => setName(event.currentTarget.value)}>
          {runs.map((run) => (
            <option key={run.name}>{run.name}</option>
          ))}
        </select>
      </label>
      <label>
        Version
        <select value={version ?? ""} onChange={(event) => setVersion(Number(event.currentTarget.value))}>
          {detail?.models.map((model) => (
            <option key={model.version} value={model.version}>
              {model.version}
              {model.best ? " (best)" : ""}
            </option>
          ))}
        </select>
      </label>
      {problem && (
        <p class="problem whole" role="alert">
          {problem}
        </p>
      )}
    </>
  );
}

function FromFile({ runs, largest, choose }: Pick<Props, "runs" | "largest" | "choose">) {
  const [share, setShare] = useState<number | null>(null);
  const [found, setFound] = useState<Uploaded | null>(null);
  const [problem, setProblem] = useState("");
  const [stop, setStop] = useState<(() => void) | null>(null);
  const [layoutOf, setLayoutOf] = useState("");
  useEffect(() => choose(null, ""), []);
  useEffect(() => () => stop?.(), [stop]);
  const named = found !== null && found.tensors !== null;
  useEffect(() => {
    if (!found) return;
    if (named) choose({ upload: found.upload }, found.file);
    else choose(layoutOf ? { upload: found.upload, run: layoutOf } : null, found.file);
  }, [found, layoutOf]);
  const take = (file: File | undefined) => {
    setFound(null);
    setProblem("");
    choose(null, "");
    if (!file) return;
    if (file.size > largest) {
      setProblem(`${file.name} has ${bytes(file.size)}; this dashboard takes ${bytes(largest)} at most. The command line takes any: fedrep run create.`);
      return;
    }
    setShare(0);
    const upload = uploadModel(file, setShare);
    setStop(() => upload.stop);
    upload.answer
      .then(setFound, (error: Error) => setProblem(error.message))
      .finally(() => {
        setShare(null);
        setStop(null);
      });
  };
  return (
    <>
      <label class="whole">
        Model file
        <input type="file" accept=".safetensors,.npy" onChange={(event) => take(event.currentTarget.files?.[0])} />
        <span class="hint">
          safetensors, or a flat float32 vector as .npy; {bytes(largest)} at most. On a silo's machine, this writes one:{" "}
          <Command text="fedrep run model init.safetensors --config client.toml" />
        </span>
      </label>
      {share !== null && (
        <div class="row whole uploading">
          <progress max={1} value={share} aria-label="Upload" />
          <span>{share < 1 ? `${Math.floor(100 * share)} %` : "checking…"}</span>
          <button type="button" onClick={() => stop?.()}>
            Stop
          </button>
        </div>
      )}
      {found && (
        <p class="fine whole" role="status">
          ✓ {found.file}: {count(found.parameters)} parameters
          {found.tensors !== null && ` in ${found.tensors === 1 ? "one tensor" : `${found.tensors} tensors`}`}, hash{" "}
          {found.hash.slice(0, 12)}…
        </p>
      )}
      {found && !named && (
        <label class="whole">
          With the layout of run
          <select value={layoutOf} onChange={(event) => setLayoutOf(event.currentTarget.value)}>
            <option value="">choose one</option>
            {runs.map((run) => (
              <option key={run.name}>{run.name}</option>
            ))}
          </select>
          <span class="hint">
            {runs.length
              ? "a .npy file has no names and shapes, which silos compare with their own model"
              : "a .npy file has no names and shapes, and there is no run to take them from: upload safetensors"}
          </span>
        </label>
      )}
      {problem && (
        <p class="problem whole" role="alert">
          {problem}
        </p>
      )}
    </>
  );
}
