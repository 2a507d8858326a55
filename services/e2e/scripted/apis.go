package scripted

import "encoding/json"

type object = map[string]any

// anthropic returns an implementation of Anthropic's Messages API.
func anthropic() api {
	return api{
		read: func(body []byte) (req request, err error) {
			var in struct {
				Stream   bool
				Tools    []struct{ Name string }
				Messages []struct{ Content json.RawMessage }
			}
			if err := json.Unmarshal(body, &in); err != nil {
				return req, err
			}
			req.stream = in.Stream
			for _, tool := range in.Tools {
				req.tools = append(req.tools, declaration{name: tool.Name})
			}
			for _, message := range in.Messages {
				var blocks []struct {
					Type    string
					Content json.RawMessage
				}
				if json.Unmarshal(message.Content, &blocks) != nil {
					continue // a string
				}
				for _, block := range blocks {
					if block.Type == "tool_result" {
						req.results = append(req.results, string(block.Content))
					}
				}
			}
			return req, nil
		},
		write: func(r reply) []event {
			start, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": r.text}
			if r.tool.name != "" {
				start = object{"type": "tool_use", "id": r.id, "name": r.tool.name, "input": object{}}
				delta = object{"type": "input_json_delta", "partial_json": r.args}
			}
			message := anthropicMessage(r, []any{})
			stop := message["stop_reason"]
			message["stop_reason"] = nil
			return []event{
				{"message_start", object{"type": "message_start", "message": message}},
				{"content_block_start", object{"type": "content_block_start", "index": 0, "content_block": start}},
				{"content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": delta}},
				{"content_block_stop", object{"type": "content_block_stop", "index": 0}},
				{"message_delta", object{"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 10}}},
				{"message_stop", object{"type": "message_stop"}},
			}
		},
		whole: func(r reply) any {
			if r.tool.name != "" {
				return anthropicMessage(r, []any{object{"type": "tool_use", "id": r.id, "name": r.tool.name, "input": json.RawMessage(r.args)}})
			}
			return anthropicMessage(r, []any{object{"type": "text", "text": r.text}})
		},
	}
}

func anthropicMessage(r reply, content []any) object {
	stop := "end_turn"
	if r.tool.name != "" {
		stop = "tool_use"
	}
	return object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": object{"input_tokens": 100, "output_tokens": 10},
	}
}

// responses returns an implementation of OpenAI's Responses API.
func responses() api {
	item := func(r reply) object {
		if r.tool.custom {
			return object{"type": "custom_tool_call", "id": "ctc_" + r.id, "call_id": r.id, "name": r.tool.name, "input": r.args, "status": "completed"}
		}
		if r.tool.name != "" {
			call := object{"type": "function_call", "id": "fc_" + r.id, "call_id": r.id, "name": r.tool.name, "arguments": r.args, "status": "completed"}
			if r.tool.namespace != "" {
				call["namespace"] = r.tool.namespace
			}
			return call
		}
		return object{
			"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
			"content": []any{object{"type": "output_text", "text": r.text, "annotations": []any{}}},
		}
	}
	whole := func(r reply) any {
		return object{
			"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "scripted", "output": []any{item(r)},
			"usage": object{"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
		}
	}
	return api{
		read: readResponses, whole: whole,
		write: func(r reply) []event {
			return []event{
				{"response.created", object{"type": "response.created", "response": object{"id": "resp_1"}}},
				{"response.output_item.added", object{"type": "response.output_item.added", "output_index": 0, "item": item(r)}},
				{"response.output_item.done", object{"type": "response.output_item.done", "output_index": 0, "item": item(r)}},
				{"response.completed", object{"type": "response.completed", "response": whole(r)}},
			}
		},
	}
}

// responsesTool is a tool or a namespace of tools.
type responsesTool struct {
	Type, Name string
	Tools      []struct{ Type, Name string }
}

func (t responsesTool) declarations() (all []declaration) {
	if t.Type != "namespace" {
		all = append(all, declaration{name: t.Name, custom: t.Type == "custom"})
	}
	for _, inner := range t.Tools {
		all = append(all, declaration{namespace: t.Name, name: inner.Name, custom: inner.Type == "custom"})
	}
	return all
}

func readResponses(body []byte) (req request, err error) {
	var in struct {
		Stream bool
		Tools  []responsesTool
		Input  []struct {
			Type   string
			Output json.RawMessage
			Tools  []responsesTool
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return req, err
	}
	req.stream = in.Stream
	tools := in.Tools
	for _, item := range in.Input {
		switch item.Type {
		case "function_call_output", "custom_tool_call_output":
			req.results = append(req.results, string(item.Output))
		case "additional_tools":
			tools = append(tools, item.Tools...)
		}
	}
	for _, tool := range tools {
		req.tools = append(req.tools, tool.declarations()...)
	}
	return req, nil
}

// completions returns an implementation of OpenAI's Chat Completions API.
func completions() api {
	message := func(r reply) object {
		if r.tool.name != "" {
			call := object{"index": 0, "id": r.id, "type": "function", "function": object{"name": r.tool.name, "arguments": r.args}}
			return object{"role": "assistant", "content": nil, "tool_calls": []any{call}}
		}
		return object{"role": "assistant", "content": r.text}
	}
	finish := func(r reply) string {
		if r.tool.name != "" {
			return "tool_calls"
		}
		return "stop"
	}
	usage := object{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
	chunk := func(choice object) event {
		choice["index"] = 0
		return event{data: object{"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": []any{choice}}}
	}
	return api{
		read: readCompletions,
		write: func(r reply) []event {
			return []event{
				chunk(object{"delta": message(r), "finish_reason": nil}),
				chunk(object{"delta": object{}, "finish_reason": finish(r)}),
				{data: object{"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": []any{}, "usage": usage}},
				{data: "[DONE]"},
			}
		},
		whole: func(r reply) any {
			choice := object{"index": 0, "message": message(r), "finish_reason": finish(r)}
			return object{"id": "chat_1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": []any{choice}, "usage": usage}
		},
	}
}

func readCompletions(body []byte) (req request, err error) {
	var in struct {
		Stream   bool
		Tools    []struct{ Function struct{ Name string } }
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return req, err
	}
	req.stream = in.Stream
	for _, tool := range in.Tools {
		req.tools = append(req.tools, declaration{name: tool.Function.Name})
	}
	for _, message := range in.Messages {
		if message.Role == "tool" {
			req.results = append(req.results, string(message.Content))
		}
	}
	return req, nil
}

// gemini returns an implementation of the Gemini API without streaming.
func gemini() api {
	whole := func(r reply) any {
		part := object{"text": r.text}
		if r.tool.name != "" {
			part = object{"functionCall": object{"name": r.tool.name, "args": json.RawMessage(r.args)}}
		}
		return object{
			"candidates": []any{object{
				"index": 0, "finishReason": "STOP", "content": object{"role": "model", "parts": []any{part}},
			}},
			"usageMetadata": object{"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
		}
	}
	return api{
		read: readGemini, whole: whole,
		write: func(r reply) []event { return []event{{data: whole(r)}} },
	}
}

// streaming returns an API that is like the given one, but streams all its responses. It is needed for the Gemini API,
// in which the path of a request, not its body, selects streaming.
func streaming(a api) api {
	read := a.read
	a.read = func(body []byte) (request, error) {
		req, err := read(body)
		req.stream = true
		return req, err
	}
	return a
}

func readGemini(body []byte) (req request, err error) {
	var in struct {
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
		Contents []struct {
			Parts []struct {
				FunctionResponse *struct{ Response json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return req, err
	}
	for _, tool := range in.Tools {
		for _, function := range tool.FunctionDeclarations {
			req.tools = append(req.tools, declaration{name: function.Name})
		}
	}
	for _, content := range in.Contents {
		for _, part := range content.Parts {
			if part.FunctionResponse != nil {
				req.results = append(req.results, string(part.FunctionResponse.Response))
			}
		}
	}
	return req, nil
}
