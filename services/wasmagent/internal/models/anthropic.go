package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// anthropicURL is the URL of the provider's API.
const anthropicURL = "https://api.anthropic.com/"

// messages is the driver for Anthropic's Messages API.
type messages struct {
	service anthropic.MessageService
	most
}

func newAnthropic(p Provider, client *http.Client) messages {
	url := p.URL
	if url == "" {
		url = anthropicURL
	}
	// The service and not the client, because the client reads environment variables.
	return messages{anthropic.NewMessageService(option.WithBaseURL(url), option.WithAPIKey(p.Key), option.WithHTTPClient(client), option.WithMaxRetries(0)), most(p.MaxTokens)}
}

func (d messages) ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, tell func(string)) (Answer, error) {
	params := anthropic.MessageNewParams{Model: model, MaxTokens: d.tokens(req)}
	for _, m := range req.GetMessages() {
		if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM {
			params.System = append(params.System, anthropic.TextBlockParam{Text: m.GetContent()})
			continue
		}
		one, err := anthropicMessage(m)
		if err != nil {
			return Answer{}, err
		}
		params.Messages = append(params.Messages, one)
	}
	for _, t := range req.GetTools() {
		tool := anthropic.ToolParam{Name: t.GetName(), Description: anthropic.String(t.GetDescription())}
		if t.GetInputSchema() != "" {
			if err := json.Unmarshal([]byte(t.GetInputSchema()), &tool.InputSchema); err != nil {
				return Answer{}, rejected("the schema of " + t.GetName() + " is no JSON object")
			}
		}
		params.Tools = append(params.Tools, anthropic.ToolUnionParam{OfTool: &tool})
	}
	return d.read(ctx, d.service.NewStreaming(ctx, params), tell)
}

// read reads an answer from a stream. With an error it returns the tokens that are known so far.
func (d messages) read(ctx context.Context, stream *ssestream.Stream[anthropic.MessageStreamEventUnion], tell func(string)) (out Answer, err error) {
	defer stream.Close() //nolint:errcheck // the stream was only read
	var all anthropic.Message
	begun := false
	for stream.Next() {
		event := stream.Current()
		begun = true
		if err := all.Accumulate(event); err != nil {
			return out, malformed("its pieces do not fit")
		}
		out.Input, out.Output = all.Usage.InputTokens+all.Usage.CacheCreationInputTokens+all.Usage.CacheReadInputTokens, all.Usage.OutputTokens
		if event.Type == "content_block_delta" && event.Delta.Text != "" {
			tell(event.Delta.Text)
		}
	}
	if err := stream.Err(); err != nil {
		if said, ok := errors.AsType[*anthropic.Error](err); ok { // an error event; a status is a FailureError
			return out, eventFailure([]byte(said.RawJSON()), begun)
		}
		return out, lostError(ctx, err, begun)
	}
	if all.StopReason == "" {
		return out, noEnd(begun)
	}
	if all.StopReason == anthropic.StopReasonMaxTokens {
		return out, ErrCut
	}
	for _, block := range all.Content {
		switch block.Type {
		case "text":
			out.Content += block.Text
		case "tool_use":
			out.Calls = append(out.Calls, &wasmagentv1.ModelCall{Id: block.ID, Name: block.Name, Arguments: string(block.Input)})
		}
	}
	return out, nil
}

func anthropicMessage(m *wasmagentv1.ModelMessage) (anthropic.MessageParam, error) {
	var blocks []anthropic.ContentBlockParamUnion
	if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL {
		return anthropic.NewUserMessage(anthropic.NewToolResultBlock(m.GetCallId(), m.GetContent(), false)), nil
	}
	if m.GetContent() != "" {
		blocks = append(blocks, anthropic.NewTextBlock(m.GetContent()))
	}
	for _, c := range m.GetCalls() {
		if !json.Valid([]byte(c.GetArguments())) {
			return anthropic.MessageParam{}, rejected("the arguments of a call are no JSON")
		}
		blocks = append(blocks, anthropic.NewToolUseBlock(c.GetId(), json.RawMessage(c.GetArguments()), c.GetName()))
	}
	if m.GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT {
		return anthropic.NewAssistantMessage(blocks...), nil
	}
	return anthropic.NewUserMessage(blocks...), nil
}
