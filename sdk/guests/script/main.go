// Command script is a guest without a model, for trials and tests. Each line of its prompt is a command:
//
//	emit TEXT              send a progress message to the caller of the prompt
//	write PATH TEXT        write a file
//	append PATH TEXT       add a line to a file
//	read PATH              add a file to the answer
//	edit PATH OLD => NEW   replace OLD with NEW
//	list                   add the paths of all files to the answer
//	todo STATUS TEXT       add a todo, or set the status of the todo with this TEXT
//	tool SERVER NAME JSON  call a tool, and add its text content to the answer
//	ask TEXT               ask the agent's model, and add its response to the answer
//	sleep DURATION         wait
//	say TEXT               add TEXT to the answer
//	done                   accept no prompts after this one
//	fail TEXT              fail the turn with the message TEXT
//
// Empty lines, and lines that begin with #, are ignored. If a command fails, its error is added to the answer, and the
// script continues with the next line. If the line begins with `must`, the error ends the turn instead.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/sdk/guest"
)

func init() { guest.Serve(new(script).run) }

func main() {}

// script is the state that the guest keeps between prompts.
type script struct{ todos []guest.Todo }

func (s *script) run(a *guest.Agent, prompt string) (string, error) {
	if s.todos == nil {
		s.todos, a.Todos = a.Todos, nil
	}
	var answer []string
	for i, line := range strings.Split(prompt, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		line, must := strings.CutPrefix(line, "must ")
		output, err := s.line(a, line)
		var denied *guest.Error
		switch {
		case err == nil && output != "":
			answer = append(answer, output)
		case err == nil:
		case must || !errors.As(err, &denied):
			return "", fmt.Errorf("line %d: %w", i+1, err)
		default:
			answer = append(answer, fmt.Sprintf("line %d: %v", i+1, err))
		}
	}
	return strings.Join(answer, "\n"), nil
}

func (s *script) line(a *guest.Agent, line string) (string, error) {
	word, rest, _ := strings.Cut(line, " ")
	first, more, _ := strings.Cut(rest, " ")
	switch word {
	case "emit":
		return "", a.Emit(rest)
	case "write":
		return "", a.WriteFile(first, more)
	case "append":
		text, err := a.ReadFile(first, 0, 0)
		var missing *guest.Error
		if err != nil && !errors.As(err, &missing) {
			return "", err
		}
		return "", a.WriteFile(first, text+more+"\n")
	case "read":
		return a.ReadFile(rest, 0, 0)
	case "edit":
		from, to, ok := strings.Cut(more, " => ")
		if !ok {
			return "", errors.New("edit has the form edit PATH OLD => NEW")
		}
		return "", a.EditFile(first, from, to, false)
	case "list":
		paths, err := a.ListFiles()
		return strings.Join(paths, "\n"), err
	case "todo":
		return "", s.todo(a, first, more)
	case "tool":
		return s.tool(a, first, more)
	case "ask":
		answer, err := a.Ask("", []guest.Message{{Role: "user", Content: rest}})
		return answer.Content, err
	case "sleep":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return "", err
		}
		return "", a.Sleep(d)
	case "say":
		return rest, nil
	case "done":
		a.Done()
		return "", nil
	case "fail":
		return "", errors.New(rest)
	}
	return "", fmt.Errorf("%q is not a command of a script: use emit, write, append, read, edit, list, todo, tool, ask, sleep, say, done, fail", word)
}

func (s *script) todo(a *guest.Agent, status, content string) error {
	todos := append([]guest.Todo(nil), s.todos...)
	found := false
	for i := range todos {
		if todos[i].Content == content {
			todos[i].Status, found = status, true
		}
	}
	if !found {
		todos = append(todos, guest.Todo{Content: content, Status: status})
	}
	if err := a.SetTodos(todos); err != nil {
		return err
	}
	s.todos = todos
	return nil
}

func (s *script) tool(a *guest.Agent, server, rest string) (string, error) {
	name, arguments, _ := strings.Cut(rest, " ")
	if arguments == "" {
		arguments = "{}"
	}
	answer, err := a.Call(server, name, json.RawMessage(arguments))
	if err == nil && answer.IsError {
		return "", &guest.Error{Code: "tool_failed", Message: answer.Text}
	}
	return answer.Text, err
}
