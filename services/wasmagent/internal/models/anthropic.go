package models

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

const (
	// anthropicURL is the base URL of the provider's API. anthropicVersion is the version of the API that requests
	// name.
	anthropicURL     = "https://api.anthropic.com/"
	anthropicVersion = "2023-06-01"
)

// anthropic is the driver for Anthropic's Messages API. In the API reference, see "Messages, Create" and "Streaming".
type anthropic struct {
	api
	tokenLimit
}

func newAnthropic(p Provider, client *http.Client) (anthropic, error) {
	header := http.Header{"Anthropic-Version": {anthropicVersion}}
	if p.Key != "" {
		header.Set("X-Api-Key", p.Key)
	}
	base, err := newAPI(client, p.URL, anthropicURL, "v1/messages", header)
	return anthropic{base, tokenLimit(p.MaxTokens)}, err
}

type anthropicRequest struct {
	Model     string             `json:"model"`
	MaxTokens int64              `json:"max_tokens"`
	Stream    bool               `json:"stream"`
	System    []anthropicBlock   `json:"system,omitempty"`
	Messages  []anthropicMessage `json:"messages"`
	Tools     []anthropicTool    `json:"tools,omitempty"`
}

type anthropicMessage struct {
	Role    string           `json:"role"`
	Content []anthropicBlock `json:"content"`
}

type anthropicBlock struct {
	Type      string           `json:"type"`
	Text      *string          `json:"text,omitempty"`
	ID        string           `json:"id,omitempty"`
	Name      string           `json:"name,omitempty"`
	Input     json.RawMessage  `json:"input,omitempty"`
	ToolUseID string           `json:"tool_use_id,omitempty"`
	IsError   *bool            `json:"is_error,omitempty"`
	Content   []anthropicBlock `json:"content,omitempty"`
}

type anthropicTool struct {
	Name        string                     `json:"name"`
	Description string                     `json:"description,omitempty"`
	InputSchema map[string]json.RawMessage `json:"input_schema"`
}

// anthropicUsage contains token counts. A count in a later event replaces an earlier count, unless the later count is
// 0.
type anthropicUsage struct {
	Input       int64 `json:"input_tokens"`
	CacheWrites int64 `json:"cache_creation_input_tokens"`
	CacheReads  int64 `json:"cache_read_input_tokens"`
	Output      int64 `json:"output_tokens"`
}

type anthropicEvent struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message struct {
		Usage anthropicUsage `json:"usage"`
	} `json:"message"`
	ContentBlock struct {
		Type  string          `json:"type"`
		Text  string          `json:"text"`
		ID    string          `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	} `json:"content_block"`
	Delta struct {
		Text        string `json:"text"`
		PartialJSON string `json:"partial_json"`
		StopReason  string `json:"stop_reason"`
	} `json:"delta"`
	Usage anthropicUsage `json:"usage"`
}

func (d anthropic) ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, progress func(string)) (Answer, error) {
	body := anthropicRequest{Model: model, MaxTokens: d.tokens(req), Stream: true}
	for _, m := range req.GetMessages() {
		if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM {
			body.System = append(body.System, textBlock(m.GetContent()))
			continue
		}
		message, err := anthropicMessageOf(m)
		if err != nil {
			return Answer{}, err
		}
		body.Messages = append(body.Messages, message)
	}
	for _, t := range req.GetTools() {
		schema, err := schemaOf(t)
		if err != nil {
			return Answer{}, err
		}
		if schema["type"] == nil { // the API requires a type
			schema["type"] = json.RawMessage(`"object"`)
		}
		body.Tools = append(body.Tools, anthropicTool{Name: t.GetName(), Description: t.GetDescription(), InputSchema: schema})
	}
	all := anthropicAnswer{tell: progress}
	hasBegun, err := d.stream(ctx, body, all.add)
	switch {
	case err != nil:
		return all.answer(), err
	case all.stop == "":
		return all.answer(), missingEndError(hasBegun)
	case all.stop == "max_tokens":
		return all.answer(), ErrTruncated
	}
	return all.answer(), nil
}

// anthropicAnswer assembles an answer from the events of a stream.
type anthropicAnswer struct {
	usage  anthropicUsage
	stop   string
	blocks []*answerBlock
	tell   func(string)
}

// add processes an event of the stream. end is true if the stream has ended.
func (a *anthropicAnswer) add(_ string, event []byte) (end bool, err error) {
	var e anthropicEvent
	if err := json.Unmarshal(event, &e); err != nil {
		return false, malformed("an event of the stream can't be parsed")
	}
	switch e.Type {
	case "message_start":
		a.usage = e.Message.Usage
	case "content_block_start":
		if e.Index != len(a.blocks) {
			return false, malformed("its blocks are not in order")
		}
		b := e.ContentBlock
		a.blocks = append(a.blocks, &answerBlock{kind: b.Type, id: b.ID, name: b.Name, initial: b.Input})
		a.addText(e.Index, b.Text)
	case "content_block_delta":
		if e.Index < 0 || e.Index >= len(a.blocks) {
			return false, malformed("its blocks are not in order")
		}
		a.addText(e.Index, e.Delta.Text)
		a.blocks[e.Index].input.WriteString(e.Delta.PartialJSON)
	case "message_delta":
		a.stop = cmp.Or(e.Delta.StopReason, a.stop)
		u := e.Usage
		a.usage = anthropicUsage{
			cmp.Or(u.Input, a.usage.Input), cmp.Or(u.CacheWrites, a.usage.CacheWrites), cmp.Or(u.CacheReads, a.usage.CacheReads), cmp.Or(u.Output, a.usage.Output),
		}
	case "message_stop":
		return true, nil
	}
	return false, nil
}

// addText appends a piece of text to a block. The pieces of different blocks may arrive in any order.
func (a *anthropicAnswer) addText(block int, text string) {
	if text != "" {
		a.blocks[block].text.WriteString(text)
		a.tell(text)
	}
}

func (a *anthropicAnswer) answer() Answer {
	u := a.usage
	out := Answer{Input: u.Input + u.CacheWrites + u.CacheReads, Output: u.Output}
	for _, b := range a.blocks {
		switch b.kind {
		case "text":
			out.Content += b.text.String()
		case "tool_use":
			out.Calls = append(out.Calls, &wasmagentv1.ModelCall{Id: b.id, Name: b.name, Arguments: cmp.Or(b.input.String(), string(b.initial))})
		}
	}
	return out
}

func textBlock(text string) anthropicBlock { return anthropicBlock{Type: "text", Text: &text} }

func anthropicMessageOf(m *wasmagentv1.ModelMessage) (anthropicMessage, error) {
	out := anthropicMessage{Role: "user"}
	if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL {
		out.Content = []anthropicBlock{{Type: "tool_result", ToolUseID: m.GetCallId(), IsError: new(false), Content: []anthropicBlock{textBlock(m.GetContent())}}}
		return out, nil
	}
	if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT {
		out.Role = "assistant"
	}
	if m.GetContent() != "" {
		out.Content = append(out.Content, textBlock(m.GetContent()))
	}
	for _, c := range m.GetCalls() {
		if !json.Valid([]byte(c.GetArguments())) {
			return out, rejected("the arguments of a call are not JSON")
		}
		out.Content = append(out.Content, anthropicBlock{Type: "tool_use", ID: c.GetId(), Name: c.GetName(), Input: json.RawMessage(c.GetArguments())})
	}
	return out, nil
}
