package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	// maxResult is the maximum size, in bytes, of a result of CallTool.
	maxResult = 6 << 20
	// maxTool is the maximum size, in bytes, of a tool definition in ListTools.
	maxTool = 1 << 20
	// maxProgress is the maximum number of queued progress messages of one call.
	maxProgress = 64
)

// errIdempotencyKey means that a request contains an idempotency key, which this version does not support.
var errIdempotencyKey = errors.New("CallToolRequest.idempotency_key is not served in this version, and the call was not made: leave it empty, and ask GetDecision what became of a call before you repeat it")

var errArguments = errors.New("arguments_json is not a JSON object")

// refusedError is a refusal that is returned as a gRPC error, not as the result of the call.
type refusedError struct{ *refusal.Refusal }

// Error implements error.
func (e refusedError) Error() string { return e.Text() }

// CallTool implements gatewayv1.GatewayServiceServer.
func (s *Service) CallTool(req *gatewayv1.CallToolRequest, stream grpc.ServerStreamingServer[gatewayv1.CallToolResponse]) error {
	if req.GetIdempotencyKey() != "" {
		return toStatus(errIdempotencyKey)
	}
	message, err := toolCall(req, s.callCount.Add(1))
	if err != nil {
		return toStatus(err)
	}
	ctx := stream.Context()
	request := mcpserver.Request{Principal: authn.CallerOf(ctx).Principal, Server: req.GetServer(), Message: message}
	if req.GetHold() != nil {
		request.Hold = new(req.GetHold().AsDuration())
	}
	// If the channel is full, progress messages are dropped. Otherwise, a client that reads slowly would delay the call.
	progress, sent := make(chan *gatewayv1.CallToolResponse, maxProgress), make(chan struct{})
	go func() {
		defer close(sent)
		for resp := range progress {
			_ = stream.Send(resp) // if this fails, the caller has disconnected and ctx is cancelled
		}
	}()
	request.Event = func(message []byte) {
		if p := progressIn(message); p != nil {
			select {
			case progress <- &gatewayv1.CallToolResponse{Item: &gatewayv1.CallToolResponse_Progress{Progress: p}}:
			default:
			}
		}
	}
	done, err := func() (mcpserver.Response, error) {
		defer close(progress)
		return s.mcp.Do(ctx, request)
	}()
	<-sent
	if err == nil && done.Refusal != nil && done.Refusal.IsProtocolError {
		err = refusedError{done.Refusal}
	}
	if err != nil {
		return toStatus(err)
	}
	return stream.Send(&gatewayv1.CallToolResponse{Item: &gatewayv1.CallToolResponse_Answer{Answer: newToolAnswer(done)}})
}

// toolCall returns the JSON-RPC request that an MCP client would send for the call in req. The request has the given
// id.
func toolCall(req *gatewayv1.CallToolRequest, id int64) ([]byte, error) {
	arguments := jsontext.Value(cmp.Or(strings.TrimSpace(req.GetArgumentsJson()), "{}"))
	// The arguments must be exactly one JSON value. Otherwise, they could add members to the message. Package jsonrpc
	// later checks the contents of the value.
	if !arguments.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) || arguments.Kind() != '{' {
		return nil, errArguments
	}
	name, err := jsontext.AppendQuote(nil, req.GetTool())
	if err != nil {
		return nil, errArguments
	}
	var meta []byte
	if id := req.GetApprovalId(); id != "" {
		quoted, err := jsontext.AppendQuote(nil, id)
		if err != nil {
			return nil, errArguments
		}
		meta = append([]byte(`,"dev.sluice/approval":`), quoted...)
	}
	number := strconv.FormatInt(id, 10)
	out := append([]byte(`{"jsonrpc":"2.0","id":`+number+`,"method":"tools/call","params":{"name":`), name...)
	out = append(append(out, `,"arguments":`...), arguments...)
	out = append(append(out, `,"_meta":{"progressToken":`+number...), meta...)
	return append(out, "}}}"...), nil
}

// progressIn returns the progress in a message from a server, or nil if the message is not a progress notification.
func progressIn(message []byte) *gatewayv1.Progress {
	dec := jsontext.NewDecoder(bytes.NewReader(message))
	params := field(dec, "params")
	if params == nil || !bytes.Contains(message, []byte(`"notifications/progress"`)) {
		return nil
	}
	number := func(name string) float64 {
		n, _ := strconv.ParseFloat(string(field(jsontext.NewDecoder(bytes.NewReader(params)), name)), 64)
		return n
	}
	text, _ := jsontext.AppendUnquote(nil, field(jsontext.NewDecoder(bytes.NewReader(params)), "message"))
	return &gatewayv1.Progress{Progress: number("progress"), Total: number("total"), Message: string(text)}
}

// field returns the value of an object's member, or nil if the object does not have a member with this name.
func field(dec *jsontext.Decoder, name string) jsontext.Value {
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil
	}
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil {
			return nil
		}
		found := key.String() == name
		value, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		if found {
			return value.Clone()
		}
	}
	return nil
}

func newToolAnswer(done mcpserver.Response) *gatewayv1.ToolAnswer {
	out := &gatewayv1.ToolAnswer{Decision: decisionInfo(done), IsError: done.Refusal != nil}
	if out.TooLarge = done.TooLarge; out.TooLarge {
		return out
	}
	parsed, err := jsonrpc.ReadAnswer(done.Answer, jsonrpc.AnswerLimits())
	if err != nil {
		out.IsError = true
		return out
	}
	result := parsed.Result.Of(parsed.Raw)
	if parsed.Error.Present() { // the server sent the error, or the gateway could not open a session
		out.IsError = true
		text := field(jsontext.NewDecoder(bytes.NewReader(parsed.Error.Of(parsed.Raw))), "message")
		if text == nil {
			text = jsontext.Value(`""`)
		}
		result = []byte(`{"content":[{"type":"text","text":` + string(text) + `}],"isError":true}`)
	}
	out.IsError = out.IsError || string(field(jsontext.NewDecoder(bytes.NewReader(result)), "isError")) == "true"
	if out.TooLarge = len(result) > maxResult; !out.TooLarge {
		out.ResultJson = string(result)
	}
	return out
}

func decisionInfo(done mcpserver.Response) *gatewayv1.DecisionInfo {
	d := done.Decision
	info := &gatewayv1.DecisionInfo{Id: done.ID, Effect: d.GetEffect(), Rule: d.GetRule(), PolicyRevision: d.GetPolicyRevision()}
	refused := done.Refusal
	if refused == nil {
		return info
	}
	info.Code, info.Message, info.Rule, info.Retryable = refused.Code, refused.Text(), refused.Rule, refused.Retryable()
	info.Id = cmp.Or(refused.ID, info.GetId())
	if info.Effect == policyv1.Effect_EFFECT_ALLOW { // the call was allowed but not sent
		info.Effect = policyv1.Effect_EFFECT_DENY
	}
	if refused.RetryAfter > 0 && info.Retryable {
		info.RetryAfter = durationpb.New(refused.RetryAfter)
	}
	if a := refused.Approval; a != nil {
		info.Approval = &gatewayv1.ApprovalInfo{Id: a.ID, Url: a.URL}
		if !a.Expires.IsZero() {
			info.Approval.Expires = timestamppb.New(a.Expires)
		}
		if !a.DeniedUntil.IsZero() {
			info.Approval.DeniedUntil = timestamppb.New(a.DeniedUntil)
		}
	}
	return info
}

// ListTools implements gatewayv1.GatewayServiceServer. If a page of the server's list is too large for one response,
// ListTools returns it as several pages. The page token contains the server's cursor.
func (s *Service) ListTools(ctx context.Context, req *gatewayv1.ListToolsRequest) (*gatewayv1.ListToolsResponse, error) {
	from, cursor, err := parseToolsToken(req.GetPageToken())
	if err != nil {
		return nil, toStatus(err)
	}
	params := "{}"
	if cursor != "" {
		quoted, err := jsontext.AppendQuote(nil, cursor)
		if err != nil {
			return nil, toStatus(errPageToken)
		}
		params = `{"cursor":` + string(quoted) + `}`
	}
	done, err := s.mcp.Do(ctx, mcpserver.Request{
		Principal: authn.CallerOf(ctx).Principal, Server: req.GetServer(),
		Message: []byte(`{"jsonrpc":"2.0","id":` + strconv.FormatInt(s.callCount.Add(1), 10) + `,"method":"tools/list","params":` + params + `}`),
	})
	switch {
	case err != nil:
		return nil, toStatus(err)
	case done.Refusal != nil && done.Refusal.Code == commonv1.Code_CODE_PARAMS_INVALID: // the cursor's session has ended
		return nil, toStatus(errPageToken)
	case done.Refusal != nil:
		return nil, toStatus(refusedError{done.Refusal})
	}
	parsed, err := jsonrpc.ReadAnswer(done.Answer, jsonrpc.AnswerLimits())
	if err != nil || !parsed.ToolList.Present() {
		return nil, toStatus(refusedError{&refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server's answer is not a list of tools."}})
	}
	resp := new(gatewayv1.ListToolsResponse)
	size, bytes := cmp.Or(int(req.GetPageSize()), defaultPage), 0
	for i := min(from, len(parsed.Tools)); i < len(parsed.Tools); i++ {
		text := parsed.Tools[i].Definition.Of(parsed.Raw)
		if len(text) > maxTool {
			continue
		}
		if len(resp.GetToolsJson()) == size || bytes+len(text) > maxList {
			resp.NextPageToken = strconv.Itoa(i) + " " + cursor
			return resp, nil
		}
		resp.ToolsJson = append(resp.ToolsJson, string(text))
		bytes += len(text)
	}
	if next, err := jsontext.AppendUnquote(nil, parsed.NextCursor.Of(parsed.Raw)); err == nil && len(next) > 0 {
		resp.NextPageToken = "0 " + string(next)
	}
	return resp, nil
}

// parseToolsToken parses a page token. The token contains the cursor of a page of the server's list, and the index of a
// tool in that page.
func parseToolsToken(token string) (from int, cursor string, err error) {
	if token == "" {
		return 0, "", nil
	}
	at, cursor, ok := strings.Cut(token, " ")
	from, err = strconv.Atoi(at)
	if err != nil || !ok || from < 0 {
		return 0, "", errPageToken
	}
	return from, cursor, nil
}
