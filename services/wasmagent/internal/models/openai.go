package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// openAIURL is the URL of the provider's API.
const openAIURL = "https://api.openai.com/v1/"

// openAI is the driver for servers of OpenAI's chat completions.
type openAI struct {
	chat openai.ChatCompletionService
	most
}

func newOpenAI(p Provider, client *http.Client) openAI {
	url := p.URL
	if url == "" {
		url = openAIURL
	}
	// The service and not the client, because the client reads environment variables.
	return openAI{openai.NewChatCompletionService(option.WithBaseURL(url), option.WithAPIKey(p.Key), option.WithHTTPClient(client), option.WithMaxRetries(0)), most(p.MaxTokens)}
}

func (o openAI) ask(ctx context.Context, model string, req *wasmagentv1.AskModelRequest, tell func(string)) (Answer, error) {
	params := openai.ChatCompletionNewParams{
		Model: model, MaxCompletionTokens: openai.Int(o.tokens(req)), StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	for _, m := range req.GetMessages() {
		params.Messages = append(params.Messages, openAIMessage(m))
	}
	for _, t := range req.GetTools() {
		f := shared.FunctionDefinitionParam{Name: t.GetName(), Description: openai.String(t.GetDescription())}
		if t.GetInputSchema() != "" {
			if err := json.Unmarshal([]byte(t.GetInputSchema()), &f.Parameters); err != nil {
				return Answer{}, rejected("the schema of " + t.GetName() + " is no JSON object")
			}
		}
		params.Tools = append(params.Tools, openai.ChatCompletionFunctionTool(f))
	}
	return o.read(ctx, o.chat.NewStreaming(ctx, params), tell)
}

// read reads an answer from a stream. With an error it returns the tokens that are known so far.
func (o openAI) read(ctx context.Context, stream *ssestream.Stream[openai.ChatCompletionChunk], tell func(string)) (out Answer, err error) {
	defer stream.Close() //nolint:errcheck // the stream was only read
	var all openai.ChatCompletionAccumulator
	begun := false
	for stream.Next() {
		piece := stream.Current()
		begun = true
		// the newest counts: some servers repeat it with each piece
		if u := piece.Usage; u.PromptTokens > 0 || u.CompletionTokens > 0 {
			out.Input, out.Output = u.PromptTokens, u.CompletionTokens
		}
		if !all.AddChunk(piece) {
			return out, malformed("its pieces do not fit")
		}
		if len(piece.Choices) > 0 && piece.Choices[0].Delta.Content != "" {
			tell(piece.Choices[0].Delta.Content)
		}
	}
	if err := stream.Err(); err != nil {
		if said, ok := errors.AsType[*ssestream.StreamError](err); ok {
			return out, eventFailure(said.Event.Data, begun)
		}
		return out, lostError(ctx, err, begun)
	}
	if len(all.Choices) == 0 || all.Choices[0].FinishReason == "" {
		return out, noEnd(begun)
	}
	if all.Choices[0].FinishReason == "length" {
		return out, ErrCut
	}
	out.Content = all.Choices[0].Message.Content
	for _, c := range all.Choices[0].Message.ToolCalls {
		out.Calls = append(out.Calls, &wasmagentv1.ModelCall{Id: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return out, nil
}

func openAIMessage(m *wasmagentv1.ModelMessage) openai.ChatCompletionMessageParamUnion {
	switch m.GetRole() { //nolint:exhaustive // the contract admits no other role
	case wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM:
		return openai.SystemMessage(m.GetContent())
	case wasmagentv1.MessageRole_MESSAGE_ROLE_TOOL:
		return openai.ToolMessage(m.GetContent(), m.GetCallId())
	case wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT:
		out := new(openai.ChatCompletionAssistantMessageParam)
		if m.GetContent() != "" {
			out.Content.OfString = param.NewOpt(m.GetContent())
		}
		for _, c := range m.GetCalls() {
			out.ToolCalls = append(out.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
				ID: c.GetId(), Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: c.GetName(), Arguments: c.GetArguments()},
			}})
		}
		return openai.ChatCompletionMessageParamUnion{OfAssistant: out}
	}
	return openai.UserMessage(m.GetContent())
}
