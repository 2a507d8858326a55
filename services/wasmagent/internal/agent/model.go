package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// AskTool is the name of the tool that asks models.
const AskTool = "wasm_model_ask"

// ErrNoModel means that the guest has asked a model although no model is configured.
var ErrNoModel = errors.New("no model is configured for the agent: name one when the agent is created, or under agents.model, and its provider under agents.providers")

// maxCallName limits the length of the name and of the id in a tool call that a model requests, in bytes.
const maxCallName = 128

const noModelCode = "no_model_configured"

// ToolInfo describes a tool to a guest.
type ToolInfo struct {
	Server      string         `json:"server"`
	Name        string         `json:"name"`
	Description string         `json:"description,omitzero"`
	InputSchema jsontext.Value `json:"input_schema,omitzero"`
}

// question contains the arguments of [AskTool].
type question struct {
	Model    string            `json:"model"`
	Messages []questionMessage `json:"messages"`
	Tools    []questionTool    `json:"tools,omitempty"`
}

type questionMessage struct {
	Role    string         `json:"role"`
	Content string         `json:"content"`
	Calls   []questionCall `json:"calls,omitempty"`
	CallID  string         `json:"callId,omitzero"`
}

type questionCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type questionTool struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitzero"`
	InputSchema jsontext.Value `json:"inputSchema,omitzero"`
}

type guestQuestion struct {
	messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
		Calls   []struct {
			ID        string         `json:"id"`
			Name      string         `json:"name"`
			Arguments jsontext.Value `json:"arguments"`
		} `json:"calls"`
		CallID string `json:"call_id"`
	}
	tools []struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		InputSchema jsontext.Value `json:"input_schema"`
	}
}

// modelAnswer is the structured result of [AskTool].
type modelAnswer struct {
	Content string `json:"content"`
	Calls   []struct {
		ID        string `json:"id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"calls"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	Cost         string `json:"cost"`
}

type guestAnswer struct {
	Content string            `json:"content"`
	Calls   []guestAnswerCall `json:"calls,omitempty"`
}

type guestAnswerCall struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Arguments jsontext.Value `json:"arguments"`
}

// askModel asks a model on behalf of a guest by calling [AskTool].
func (a *Agent) askModel(t *turn, envelope abi.GuestEnvelope) (in abi.HostEnvelope, err error) {
	name, ok := a.Host.Model(a, envelope.Model)
	if !ok {
		t.modelMissing = true
		return abi.HostEnvelope{Kind: abi.Result, Error: &abi.Error{Code: noModelCode, Message: ErrNoModel.Error()}}, nil
	}
	arguments, err := questionOf(name, envelope)
	if err != nil {
		return abi.HostEnvelope{Kind: abi.Result, Error: &abi.Error{Code: "question_invalid", Message: err.Error()}}, nil //nolint:nilerr // the guest gets it
	}
	return a.makeCall(t, ToolCall{Server: a.Host.Server(), Tool: AskTool, Arguments: arguments, Model: name, Progress: t.progress})
}

// questionOf converts a guest's question to the JSON arguments of [AskTool].
func questionOf(model string, envelope abi.GuestEnvelope) ([]byte, error) {
	var asked guestQuestion
	if err := json.Unmarshal(envelope.Messages, &asked.messages); err != nil {
		return nil, fmt.Errorf("messages: %s", abi.JSONError(err))
	}
	if len(envelope.Tools) > 0 {
		if err := json.Unmarshal(envelope.Tools, &asked.tools); err != nil {
			return nil, fmt.Errorf("tools: %s", abi.JSONError(err))
		}
	}
	q := question{Model: model}
	for _, m := range asked.messages {
		message := questionMessage{Role: m.Role, Content: m.Content, CallID: m.CallID}
		for _, c := range m.Calls {
			message.Calls = append(message.Calls, questionCall{c.ID, c.Name, string(c.Arguments)})
		}
		q.Messages = append(q.Messages, message)
	}
	for _, tool := range asked.tools {
		q.Tools = append(q.Tools, questionTool{tool.Name, tool.Description, tool.InputSchema})
	}
	return json.Marshal(q)
}

// modelResult converts the result of [AskTool] to the envelope for the guest. It also counts the tokens and the cost.
func (a *Agent) modelResult(t *turn, result ToolResult, call ToolCall) abi.HostEnvelope {
	in := abi.HostEnvelope{Kind: abi.Result}
	var answer modelAnswer
	if result.IsError {
		in.Error = a.modelError(t, result, call)
		return in
	}
	err := json.Unmarshal(result.Structured, &answer)
	if err != nil {
		a.countEstimate(t, call)
		in.Error = &abi.Error{Code: "model_failed", Message: result.Text}
		return in
	}
	a.countModelUse(t, call, answer)
	out := guestAnswer{Content: answer.Content}
	for _, c := range answer.Calls {
		if c.Name == "" || len(c.Name) > maxCallName || len(c.ID) > maxCallName {
			in.Error = &abi.Error{Code: "model_failed", Message: "the model asked for a call whose name or id is missing or too long"}
			return in
		}
		arguments := jsontext.Value(cmp.Or(c.Arguments, "{}"))
		if !arguments.IsValid() || arguments.Kind() != '{' { // the guest gets the invalid text, to report it to the model
			text, err := json.Marshal(c.Arguments)
			if err != nil {
				text = []byte(`""`)
			}
			arguments = text
		}
		out.Calls = append(out.Calls, guestAnswerCall{c.ID, c.Name, arguments})
	}
	if in.Result, err = json.Marshal(out); err != nil || len(in.Result) > 4*maxResultBytes {
		in.Result, in.Error = nil, &abi.Error{Code: "model_failed", Message: "the model's answer is not valid UTF-8, or too long"}
	}
	return in
}

func (a *Agent) countModelUse(t *turn, call ToolCall, answer modelAnswer) {
	nanos, err := models.Nanos(answer.Cost)
	if err != nil {
		nanos = 0
	}
	a.mu.Lock()
	a.usage.inputTokens += answer.InputTokens
	a.usage.outputTokens += answer.OutputTokens
	a.usage.nanos += nanos
	a.mu.Unlock()
	a.Host.CountModelUse(t.ctx, a, call, answer.InputTokens+answer.OutputTokens, nanos)
}

// unchargedReasons contains the reasons of errors for which the provider does not charge, because it has not processed
// the question.
var unchargedReasons = map[string]bool{
	"NO_MODEL_CONFIGURED": true, "QUESTIONS_FULL": true, "MODEL_REJECTED": true, "MODEL_AUTH": true, "MODEL_RATE_LIMITED": true,
	"MODEL_OVERLOADED": true, "MODEL_UNREACHABLE": true, "MODEL_COST_SPENT": true, "MODEL_FOR_AGENTS": true, "ARGUMENTS_INVALID": true,
}

// modelError returns the error that the guest receives for a question without an answer. It counts the tokens and the
// cost that the service has reported, or an estimate if the service has reported none.
func (a *Agent) modelError(t *turn, result ToolResult, call ToolCall) *abi.Error {
	reason, metadata := result.Failure.Reason, result.Failure.Metadata
	if input, err := strconv.ParseInt(metadata["input_tokens"], 10, 32); err == nil && input >= 0 {
		output, _ := strconv.ParseInt(metadata["output_tokens"], 10, 32)
		a.countModelUse(t, call, modelAnswer{InputTokens: input, OutputTokens: max(output, 0), Cost: metadata["cost"]})
	} else if !unchargedReasons[reason] {
		a.countEstimate(t, call)
	}
	if reason == "" {
		return &abi.Error{Code: "model_failed", Message: result.Text}
	}
	_, message, _ := strings.Cut(result.Text, reason+": ")
	return &abi.Error{Code: strings.ToLower(reason), Message: cmp.Or(message, result.Text)}
}

// bytesPerToken is how many bytes a token is assumed to have when tokens are estimated.
const bytesPerToken = 4

// countEstimate counts an estimated number of tokens for a question whose real usage is unknown.
func (a *Agent) countEstimate(t *turn, call ToolCall) {
	tokens := int64(len(call.Arguments) / bytesPerToken)
	a.mu.Lock()
	a.usage.inputTokens += tokens
	a.mu.Unlock()
	a.Host.CountModelUse(t.ctx, a, call, tokens, 0)
}

func (a *Agent) listTools(t *turn) (in abi.HostEnvelope, err error) {
	in = abi.HostEnvelope{Kind: abi.Result}
	var list []ToolInfo
	var failed error
	if err := a.awaitCall(t, func() { list, failed = a.Host.Tools(t.ctx, a) }); err != nil {
		return in, err
	}
	if failed != nil {
		in.Error = &abi.Error{Code: "tools_unavailable", Message: "the tools can't be listed now"}
		return in, nil //nolint:nilerr // the guest has the error
	}
	if in.Result, err = json.Marshal(list); err != nil {
		in.Result, in.Error = nil, &abi.Error{Code: "tools_unavailable", Message: "the list of tools is not valid UTF-8"}
	}
	return in, nil
}

// CheckModelRights returns nil if an agent and every agent in its delegation chain may ask a model, and their rights
// are not used up. lineage contains all these agents. priced is true if a price is configured for the model.
// CheckModelRights returns [manifest.ErrNotAllowed], [manifest.ErrSpent], or an error from the store.
func CheckModelRights(ctx context.Context, db *store.Store, lineage []*Agent, model string, priced bool) error {
	for _, member := range lineage {
		found, err := member.Rights().MatchModel(model, time.Now())
		if err != nil {
			return err
		}
		if !priced { // without a price, a cost limit can't be applied
			found = slices.DeleteFunc(found, func(f manifest.ModelMatch) bool { return f.Nanos >= 0 })
		}
		if len(found) == 0 {
			return fmt.Errorf("%w: it limits the cost, but no price is configured for %s", manifest.ErrNotAllowed, model)
		}
		if slices.ContainsFunc(found, manifest.ModelMatch.IsUnbounded) {
			continue
		}
		if isUnspent, err := db.HasUnspentRight(ctx, member.Budget(), found); err != nil || !isUnspent {
			return errors.Join(storeError(err), spentError(isUnspent, model))
		}
	}
	return nil
}

func spentError(isUnspent bool, model string) error {
	if isUnspent {
		return nil
	}
	return fmt.Errorf("%w: the tokens or the cost of %s are used up", manifest.ErrSpent, model)
}

// CountModelUse counts the tokens and the cost of a question to a model against the rights of an agent and of the
// agents in its delegation chain. lineage contains all these agents.
func CountModelUse(ctx context.Context, db *store.Store, lineage []*Agent, model string, tokens, nanos int64) error {
	var spends []store.ModelUse
	for _, member := range lineage {
		found, err := member.Rights().MatchModel(model, time.Now())
		if err != nil || slices.ContainsFunc(found, manifest.ModelMatch.IsUnbounded) {
			continue
		}
		spends = append(spends, store.ModelUse{Budget: member.Budget(), Matches: found, Tokens: tokens, Nanos: nanos})
	}
	if len(spends) == 0 {
		return nil
	}
	return db.CountModelUse(ctx, spends)
}
