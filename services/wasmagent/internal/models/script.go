package models

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// script is a built-in model that needs no network. It processes the user's newest message line by line. The line `call
// TOOL {…}` requests a tool call, and the line `say TEXT` adds TEXT to the answer. All other lines, and the results of
// tool calls, are added to the answer, too. Each word counts as one token.
type script struct{}

// ask implements driver.
func (script) ask(_ context.Context, _ string, req *wasmagentv1.AskModelRequest, progress func(string)) (Answer, error) {
	from := 0
	for i, m := range req.GetMessages() {
		if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_USER {
			from = i
		}
	}
	var results []string
	for _, m := range req.GetMessages()[from:] {
		if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL {
			results = append(results, m.GetContent())
		}
	}
	var out Answer
	var texts []string
	calls := 0
	for line := range strings.Lines(req.GetMessages()[from].GetContent()) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "":
		case word == "call" && calls < len(results):
			texts = append(texts, results[calls])
			calls++
		case word == "call":
			name, arguments, _ := strings.Cut(rest, " ")
			if arguments == "" {
				arguments = "{}"
			}
			if !jsontext.Value(arguments).IsValid() {
				arguments = `{"input":` + quoted(arguments) + `}`
			}
			out.Calls = []*wasmagentv1.ModelCall{{Id: fmt.Sprintf("call-%d", calls+1), Name: name, Arguments: arguments}}
			return countWords(out, req), nil
		case word == "say":
			texts = append(texts, rest)
		default:
			texts = append(texts, line)
		}
	}
	out.Content = strings.Join(texts, "\n")
	progress(out.Content)
	return countWords(out, req), nil
}

func quoted(text string) string {
	out, err := json.Marshal(text)
	if err != nil { // the content is not UTF-8
		return `""`
	}
	return string(out)
}

// countWords counts each word of the question and of the answer as one token.
func countWords(out Answer, req *wasmagentv1.AskModelRequest) Answer {
	for _, m := range req.GetMessages() {
		out.Input += int64(len(strings.Fields(m.GetContent())))
	}
	out.Output = int64(len(strings.Fields(out.Content)))
	for _, c := range out.Calls {
		out.Output += int64(len(strings.Fields(c.GetArguments())) + 1)
	}
	return out
}
