package models

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

const openAIURL = "https://api.openai.com/v1/"

// openAI is the driver for OpenAI's Chat Completions API. In the API reference, see "Chat Completions, Create" and
// "Streaming".
type openAI struct {
	api
	tokenLimit
}

func newOpenAI(p Provider, client *http.Client) (openAI, error) {
	header := make(http.Header)
	if p.Key != "" {
		header.Set("Authorization", "Bearer "+p.Key)
	}
	base, err := newAPI(client, p.URL, openAIURL, "chat/completions", header)
	return openAI{base, tokenLimit(p.MaxTokens)}, err
}

type openAIRequest struct {
	Model         string              `json:"model"`
	MaxTokens     int64               `json:"max_completion_tokens"`
	Stream        bool                `json:"stream"`
	StreamOptions openAIStreamOptions `json:"stream_options"`
	Messages      []openAIMessage     `json:"messages"`
	Tools         []openAITool        `json:"tools,omitempty"`
}

type openAIStreamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type openAIMessage struct {
	Role       string       `json:"role"`
	Content    *string      `json:"content,omitempty"`
	ToolCalls  []openAICall `json:"tool_calls,omitempty"`
	ToolCallID string       `json:"tool_call_id,omitempty"`
}

// openAICall is a tool call in a message, or a piece of a tool call in a stream.
type openAICall struct {
	Index    int    `json:"index,omitempty"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type openAITool struct {
	Type     string         `json:"type"`
	Function openAIFunction `json:"function"`
}

type openAIFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

type openAIPiece struct {
	Choices []struct {
		Index int `json:"index"`
		Delta struct {
			Content   string       `json:"content"`
			ToolCalls []openAICall `json:"tool_calls"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
	} `json:"usage"`
}

func (o openAI) ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, progress func(string)) (Answer, error) {
	body := openAIRequest{Model: model, MaxTokens: o.tokens(req), Stream: true, StreamOptions: openAIStreamOptions{IncludeUsage: true}}
	for _, m := range req.GetMessages() {
		body.Messages = append(body.Messages, openAIMessageOf(m))
	}
	for _, t := range req.GetTools() {
		f := openAIFunction{Name: t.GetName(), Description: t.GetDescription()}
		if t.GetInputSchema() != "" {
			if _, err := schemaOf(t); err != nil {
				return Answer{}, err
			}
			f.Parameters = json.RawMessage(t.GetInputSchema())
		}
		body.Tools = append(body.Tools, openAITool{Type: "function", Function: f})
	}
	all := openAIAnswer{tell: progress}
	hasBegun, err := o.stream(ctx, body, all.add)
	switch {
	case err != nil:
		return all.answer(), err
	case all.finish == "":
		return all.answer(), missingEndError(hasBegun)
	case all.finish == "length":
		return all.answer(), ErrTruncated
	}
	return all.answer(), nil
}

// openAIAnswer assembles an answer from the pieces in a stream.
type openAIAnswer struct {
	input, output int64
	finish        string
	text          strings.Builder
	calls         []*answerBlock
	// latest maps an index to the newest call with that index.
	latest map[int]*answerBlock
	tell   func(string)
}

func (a *openAIAnswer) answer() Answer {
	out := Answer{Content: a.text.String(), Input: a.input, Output: a.output}
	for _, c := range a.calls {
		out.Calls = append(out.Calls, &wasmagentv1.ModelCall{Id: c.id, Name: c.name, Arguments: c.input.String()})
	}
	return out
}

// add processes an event of the stream. It reports whether the stream has ended.
func (a *openAIAnswer) add(_ string, event []byte) (end bool, err error) {
	if string(event) == "[DONE]" {
		return true, nil
	}
	var piece openAIPiece
	if err := json.Unmarshal(event, &piece); err != nil {
		return false, malformed("an event of the stream can't be parsed")
	}
	// Some servers send the usage with each piece. Only the newest usage counts.
	if u := piece.Usage; u.Prompt > 0 || u.Completion > 0 {
		a.input, a.output = u.Prompt, u.Completion
	}
	for _, choice := range piece.Choices {
		if choice.Index != 0 { // only one choice was requested
			continue
		}
		if choice.FinishReason != "" {
			a.finish = choice.FinishReason
		}
		if choice.Delta.Content != "" {
			a.text.WriteString(choice.Delta.Content)
			a.tell(choice.Delta.Content)
		}
		for _, call := range choice.Delta.ToolCalls {
			if err := a.addCall(call); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// addCall adds a piece to the newest call that has the same index. Some servers send each call in one piece without an
// index, so a piece with a different id and a name begins a new call. Other servers send a different id in each piece,
// so a piece with a different id but without a name still belongs to the newest call.
func (a *openAIAnswer) addCall(piece openAICall) error {
	index := max(piece.Index, 0) // some servers send -1 for 0
	call := a.latest[index]
	isOther := call != nil && piece.ID != "" && piece.ID != call.id && piece.Function.Name != "" && call.name != ""
	if call == nil || isOther {
		if len(a.calls) == maxCalls {
			return malformed("it has too many calls")
		}
		call = &answerBlock{kind: "tool_use"}
		if a.latest == nil {
			a.latest = make(map[int]*answerBlock)
		}
		a.calls, a.latest[index] = append(a.calls, call), call
	}
	call.id, call.name = cmp.Or(call.id, piece.ID), call.name+piece.Function.Name
	call.input.WriteString(piece.Function.Arguments)
	return nil
}

const maxCalls = 1000

func openAIMessageOf(m *wasmagentv1.ModelMessage) openAIMessage {
	out := openAIMessage{Role: "user", Content: &m.Content}
	switch m.GetRole() { //nolint:exhaustive // the contract admits no other role
	case wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM:
		out.Role = "system"
	case wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL:
		out.Role, out.ToolCallID = "tool", m.GetCallId()
	case wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT:
		out.Role = "assistant"
		if m.GetContent() == "" {
			out.Content = nil
		}
		for _, c := range m.GetCalls() {
			call := openAICall{ID: c.GetId(), Type: "function"}
			call.Function.Name, call.Function.Arguments = c.GetName(), c.GetArguments()
			out.ToolCalls = append(out.ToolCalls, call)
		}
	}
	return out
}
