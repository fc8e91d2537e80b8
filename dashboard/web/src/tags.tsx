// Words by which people find a run. No silo sees them, so setting them needs no signature.
import { useState } from "preact/hooks";
import { type Run, call } from "./api";

export function TagList({ tags, find }: { tags: string[]; find?: (tag: string) => void }) {
  if (tags.length === 0) return null;
  return (
    <ul class="tags" aria-label="Tags">
      {tags.map((tag) => (
        <li key={tag}>
          {find ? (
            <button type="button" class="tag" onClick={() => find(tag)} title={`Search for ${tag}`}>
              {tag}
            </button>
          ) : (
            <span class="tag">{tag}</span>
          )}
        </li>
      ))}
    </ul>
  );
}

export function Tags({ run, mayAct }: { run: Run; mayAct: boolean }) {
  const [text, setText] = useState<string | null>(null); // null while nobody edits
  const [problem, setProblem] = useState("");
  const save = (event: Event) => {
    event.preventDefault();
    const tags = text!.split(/[\s,]+/).filter(Boolean);
    call("POST", `/runs/${run.name}/tags`, { tags }).then(
      () => setText(null),
      (error: Error) => setProblem(error.message),
    );
  };
  if (text === null)
    return (
      <div class="tag-row">
        <TagList tags={run.tags} />
        {mayAct && (
          <button type="button" class="quiet small" onClick={() => setText(run.tags.join(" "))}>
            {run.tags.length ? "Change tags" : "Add tags"}
          </button>
        )}
      </div>
    );
  return (
    <form class="tag-row" onSubmit={save}>
      <label>
        <span class="spoken">Tags, separated by spaces</span>
        <input value={text} placeholder="words, separated by spaces" onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <button type="submit">Save tags</button>
      <button type="button" class="quiet" onClick={() => setText(null)}>
        Cancel
      </button>
      {problem && (
        <span class="problem" role="alert">
          {problem}
        </span>
      )}
    </form>
  );
}
