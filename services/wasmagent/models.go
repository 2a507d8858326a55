package wasmagent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
)

const (
	// maxPendingPieces limits how many pieces of a model's answer wait to be sent to the caller.
	maxPendingPieces = 64
	// maxToolsBytes limits the size, in bytes, of the tool definitions that an agent receives. maxToolsPages limits how
	// many pages of one server's tool list are read.
	maxToolsBytes = 512 << 10
	maxToolsPages = 10
)

// modelServer implements wasmagentv1.ModelServiceServer.
type modelServer struct {
	wasmagentv1.UnimplementedModelServiceServer
	*Service
}

// AskModel implements wasmagentv1.ModelServiceServer.
func (s modelServer) AskModel(req *wasmagentv1.AskModelRequest, stream wasmagentv1.ModelService_AskModelServer) error {
	ctx := stream.Context()
	person := principal.Person(actingPrincipal(ctx))
	release, err := s.questionQueue.acquire(ctx, person, false)
	if errors.Is(err, errNoSlot) {
		err = fmt.Errorf("%w: %w", errQuestionsFull, err)
	}
	if err != nil {
		return toStatus(err)
	}
	defer release()
	settle, err := s.reserveDay(ctx, person, s.models.EstimateMaximum(req))
	if err != nil {
		return toStatus(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.questionTimeout, errQuestionTimeout)
	defer cancel()
	// A slow caller must not delay the answer, so pieces are dropped while the channel is full.
	pieces, sent := make(chan string, maxPendingPieces), make(chan struct{})
	go func() {
		defer close(sent)
		n := 0.
		for text := range pieces {
			n++
			_ = stream.Send(&wasmagentv1.AskModelResponse{Progress: progressMessage(n, text)}) // if Send fails, ctx is cancelled
		}
	}()
	answer, err := s.models.Ask(ctx, req, func(text string) {
		select {
		case pieces <- text:
		default:
		}
	})
	if err != nil && errors.Is(context.Cause(ctx), errQuestionTimeout) {
		err = errQuestionTimeout
	}
	settle(answer)
	close(pieces)
	<-sent
	if err != nil {
		if _, ok := errors.AsType[*models.FailureError](err); ok {
			s.log.WarnContext(ctx, "a model did not answer", "model", req.GetModel(), "error", err)
		}
		return toStatus(chargedError{err, answer})
	}
	return stream.Send(&wasmagentv1.AskModelResponse{
		Content: answer.Content, Calls: answer.Calls, InputTokens: int32(answer.Input), OutputTokens: int32(answer.Output), Cost: models.Dollars(answer.Nanos),
	})
}

// chargedError is the error of a failed question. It also contains the tokens and the cost for which the provider may
// charge.
type chargedError struct {
	error

	charged models.Answer
}

// Unwrap returns the error without the tokens and the cost.
func (e chargedError) Unwrap() error { return e.error }

// metadata returns the tokens and the cost of the failed question, or nil if the provider charges nothing.
func (e chargedError) metadata() map[string]string {
	if e.charged.Input == 0 && e.charged.Output == 0 {
		return nil
	}
	return map[string]string{
		"input_tokens": strconv.FormatInt(e.charged.Input, 10), "output_tokens": strconv.FormatInt(e.charged.Output, 10), "cost": models.Dollars(e.charged.Nanos),
	}
}

// Model implements [agent.Host].
func (h host) Model(a *agent.Agent, asked string) (string, bool) {
	name := asked
	if name == "" {
		name = h.modelOf(a.Config.GetModel(), a.ImportedDigest != "")
	}
	return name, h.server != "" && h.models.Has(name)
}

// modelOf returns the model that an agent uses. This is the model with the given name in the agent's configuration, or
// the default model if the configuration names none. An imported agent uses the default model as well if no configured
// provider has the model that its configuration names.
func (s *Service) modelOf(named string, imported bool) string {
	if named == "" || imported && s.model != "" && !s.models.Has(named) {
		return s.model
	}
	return named
}

func (s *Service) agentInfo(r *wasmstorev1.Record) *wasmagentv1.Agent {
	out := agent.RecordProto(r)
	out.Model = s.modelOf(r.GetConfig().GetModel(), r.GetImportedDigest() != "")
	return out
}

// Server implements [agent.Host].
func (h host) Server() string { return h.server }

// Tools implements [agent.Host]. It returns the tools that the agent's rights include and that the policy shows to the
// agent.
func (h host) Tools(ctx context.Context, a *agent.Agent) ([]agent.ToolInfo, error) {
	rights := a.Rights()
	servers, out, bytes := make(map[string]bool), []agent.ToolInfo{}, 0
	ctx = authn.OnBehalfOf(ctx, a.Principal())
	var failed error
	for _, right := range rights.Union(time.Now()).GetTools() {
		if servers[right.GetServer()] {
			continue
		}
		servers[right.GetServer()] = true
		token := ""
		for range maxToolsPages {
			page, err := h.gateway.ListTools(ctx, &gatewayv1.ListToolsRequest{Server: right.GetServer(), PageToken: token})
			if err != nil {
				h.log.WarnContext(ctx, "a server's tools can't be listed for an agent", "agent", a.ID, "server", right.GetServer(), "error", err)
				failed = err
				break
			}
			for _, text := range page.GetToolsJson() {
				info, ok := parseTool(right.GetServer(), text)
				if !ok || info.Server == h.server && info.Name == agent.AskTool || !rights.NamesTool(info.Server, info.Name, time.Now()) {
					continue
				}
				if bytes += len(text); bytes > maxToolsBytes {
					return out, nil
				}
				out = append(out, info)
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
	}
	if len(out) == 0 {
		return out, failed
	}
	return out, nil
}

// parseTool converts a tool definition to the form that agents receive. ok is false if the definition can't be used.
func parseTool(server, text string) (info agent.ToolInfo, ok bool) {
	var parsed struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		InputSchema jsontext.Value `json:"inputSchema"`
	}
	if json.Unmarshal([]byte(text), &parsed) != nil || parsed.Name == "" {
		return info, false
	}
	return agent.ToolInfo{Server: server, Name: parsed.Name, Description: parsed.Description, InputSchema: parsed.InputSchema}, true
}
