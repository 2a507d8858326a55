package policy_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
)

// dayWork generates the random calls of one agent.
type dayWork struct {
	*rand.Rand

	root, agent string
	known       []string // the entities that the agent has created
}

func pick[T any](w *dayWork, list ...T) T { return list[w.IntN(len(list))] }

// path returns the path of a file below the directory that the file system server serves.
func (w *dayWork) path(name string) string { return filepath.Join(w.root, name) }

// file returns the name of one of the project files that the agent writes.
func (w *dayWork) file() string { return fmt.Sprintf("project/%s-%d.md", w.agent, w.IntN(12)) }

// text returns a text of about n characters in one of several languages.
func (w *dayWork) text(n int) string {
	sentence := pick(w,
		"The meeting is moved to Thursday. ", "Größere Änderungen übernimmt Jürgen am Montag. ", "会議は木曜日に変更されました。",
		"Встреча перенесена на четверг. ", "تم تأجيل الاجتماع إلى يوم الخميس. ", "회의가 목요일로 변경되었습니다. ", "La réunion est décalée à jeudi ☕️. ", "बैठक गुरुवार को होगी। ",
	)
	return strings.Repeat(sentence, max(1, n/len([]rune(sentence))))
}

func readFiles(w *dayWork) []dayCall {
	out := []dayCall{
		{server: "files", tool: "list_directory", args: dayJSON("path", w.path("project"))},
		{server: "files", tool: "read_text_file", args: dayJSON("path", w.path(pick(w, "project/plan.md", "project/notes.md", w.file())))},
	}
	return append(out, pick(w,
		dayCall{server: "files", tool: "search_files", args: dayJSON("path", w.path("project"), "pattern", "*.md")},
		dayCall{server: "files", tool: "get_file_info", args: dayJSON("path", w.path("project/plan.md"))},
		dayCall{server: "files", tool: "directory_tree", args: dayJSON("path", w.path("project"))},
		dayCall{server: "files", tool: "read_text_file", args: `{}`, refused: "type_error"},
		dayCall{server: "files", tool: "list_directory", args: `{"path":7}`},
	))
}

func editFile(w *dayWork) []dayCall {
	name := w.path(w.file())
	edit := []any{map[string]any{"oldText": "a\n", "newText": "b\n"}}
	return []dayCall{
		{server: "files", tool: "read_text_file", args: dayJSON("path", name)},
		{server: "files", tool: "write_file", args: dayJSON("path", name, "content", "a\n"+w.text(w.IntN(6000)))},
		{server: "files", tool: "edit_file", args: dayJSON("path", name, "edits", edit)},
	}
}

// writeOutside returns calls that write files outside the project. Different programs could interpret some of their
// paths differently.
func writeOutside(w *dayWork) []dayCall {
	tool, more := "write_file", []any{"content", w.text(50)}
	if w.IntN(3) == 0 {
		tool, more = "edit_file", []any{"edits", []any{map[string]any{"oldText": "x", "newText": "y"}}}
	}
	path, code := "", "denied_by_rule"
	switch w.IntN(4) {
	case 0:
		path = w.path("private/salaries.csv")
	case 1:
		path = w.root + "/project/../private/" + w.agent + ".txt"
	case 2:
		path = "/etc/" + w.agent + ".conf"
	case 3:
		path, code = pick(w, "~/todo.md", `C:\notes.md`, w.root+"/project/a%2e%2e/b.md"), "type_error"
	}
	return []dayCall{{server: "files", tool: tool, args: dayJSON(append(more, "path", path)...), refused: code}}
}

func readPrivate(w *dayWork) []dayCall {
	path := pick(w, w.path("private/salaries.csv"), w.root+"/project/../private/salaries.csv")
	return []dayCall{{server: "files", tool: "read_text_file", args: dayJSON("path", path), refused: "denied_by_rule"}}
}

func moveFile(w *dayWork) []dayCall {
	args := dayJSON("source", w.path(w.file()), "destination", w.path(w.file()))
	return []dayCall{{server: "files", tool: "move_file", args: args, refused: "denied_by_rule"}}
}

func think(w *dayWork) (out []dayCall) {
	n := 1 + w.IntN(4)
	for i := range n {
		out = append(out, dayCall{server: "thinking", tool: "sequentialthinking", args: dayJSON(
			"thought", w.text(w.IntN(400)), "thoughtNumber", i+1, "totalThoughts", n, "nextThoughtNeeded", i+1 < n)})
	}
	return out
}

func remember(w *dayWork) []dayCall {
	name := fmt.Sprintf("%s's note %d", w.agent, len(w.known))
	w.known = append(w.known, name)
	entity := map[string]any{"name": name, "entityType": "note", "observations": []any{w.text(w.IntN(300))}}
	more := map[string]any{"entityName": name, "contents": []any{w.text(w.IntN(300))}}
	link := map[string]any{"from": name, "to": pick(w, w.known...), "relationType": "follows"}
	out := []dayCall{{server: "memory", tool: "create_entities", args: dayJSON("entities", []any{entity})}}
	return append(out, pick(w,
		dayCall{server: "memory", tool: "add_observations", args: dayJSON("observations", []any{more})},
		dayCall{server: "memory", tool: "create_relations", args: dayJSON("relations", []any{link})},
		dayCall{server: "memory", tool: "add_observations", args: `{"observations":"all"}`},
	))
}

func recall(w *dayWork) []dayCall {
	return []dayCall{pick(w,
		dayCall{server: "memory", tool: "search_nodes", args: dayJSON("query", pick(w, "note", "Montag", "木曜日"))},
		dayCall{server: "memory", tool: "open_nodes", args: dayJSON("names", []any{w.agent + "'s note 0"})},
		dayCall{server: "memory", tool: "read_graph", args: `{}`},
	)}
}

func forget(w *dayWork) []dayCall {
	args := dayJSON("entityNames", []any{fmt.Sprintf("%s's note %d", w.agent, w.IntN(1000))})
	return []dayCall{{server: "memory", tool: "delete_entities", args: args, refused: "approval_required"}}
}

func echoText(w *dayWork) []dayCall {
	if w.IntN(10) == 0 {
		return []dayCall{{server: "everything", tool: "echo", args: `{}`, refused: "type_error"}}
	}
	text := w.text(pick(w, 40, 400, 20000))
	c := dayCall{server: "everything", tool: "echo", args: dayJSON("message", text)}
	if len([]rune(text)) > 2000 {
		c.refused = "denied_by_rule"
	}
	return []dayCall{c}
}

func calculate(w *dayWork) []dayCall {
	return []dayCall{pick(w,
		dayCall{server: "everything", tool: "get-sum", args: dayJSON("a", w.IntN(100), "b", w.Float64())},
		dayCall{server: "everything", tool: "get-sum", args: `{"a":"one","b":2}`, refused: "type_error"},
		dayCall{server: "everything", tool: "get-sum", args: `{"a":1,"b":2,"debug":true}`, refused: "type_error"},
		dayCall{server: "everything", tool: "get-env", args: `{}`, refused: "denied_by_rule"},
		dayCall{server: "everything", tool: "get-structured-content", args: `{"location":"Chicago"}`},
	)}
}

// guessTools returns calls to tools that no server has.
func guessTools(w *dayWork) []dayCall {
	return []dayCall{pick(w,
		dayCall{server: "files", tool: "delete_file", args: dayJSON("path", w.path(w.file())), refused: "denied_by_default", unknown: true},
		dayCall{server: "memory", tool: "drop_graph", args: `{}`, refused: "denied_by_default", unknown: true},
		dayCall{server: "everything", tool: "run-shell", args: `{"command":"ls"}`, refused: "denied_by_default", unknown: true},
	)}
}

func manageAgents(w *dayWork) []dayCall {
	const server = "claude-flow"
	return []dayCall{pick(w,
		dayCall{server: server, tool: "wasm_agent_list", args: `{}`},
		dayCall{server: server, tool: "wasm_agent_is_stopped", args: `{"agentId":"wasm-agent-1"}`},
		dayCall{server: server, tool: "wasm_agent_terminate", args: `{"agentId":"wasm-agent-1"}`, refused: "denied_by_rule"},
	)}
}
