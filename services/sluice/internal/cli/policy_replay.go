package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

// maxReplayBatch is the size in bytes above which records are divided into several requests.
const maxReplayBatch = 2 << 20

func (t *tool) policyReplay() *cobra.Command {
	var since, until string
	filter := &gatewayv1.DecisionFilter{WithoutProtocol: true, Kinds: []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_INTENT, gatewayv1.RecordKind_RECORD_KIND_REFUSAL}}
	c := &cobra.Command{
		Use:   "replay [PATH...]",
		Short: "Show which recorded calls would get another result under a draft of the policy documents",
		Long: `Evaluate the calls in the journal again with other policy documents, and show the calls that
would get another result, first the calls that were refused and would be allowed. PATHs are
files or folders with all documents of the draft (default the active documents). Nothing is
changed. Ctrl-C prints what was found until then.

A result is unknown if it depends on arguments that were not recorded or in which values were
replaced, on groups of a caller without a valid token, or on names of prompts and resources.
Only operators can use recorded arguments. Groups and classes of tools are the current ones.
Limits and the terms of approvals are not compared.

The command exits with 1 if a refused call would be allowed or could be approved, or if a call
would no longer need an approval; with 2 if it fails; and with 3 if it is interrupted, or if
calls with an unknown result may be such calls.`,
		Example: "  " + t.self + " policy replay draft/ --since 7d",
		RunE: func(c *cobra.Command, given []string) error {
			now := time.Now()
			if err := setTimes(filter, since, until, now); err != nil {
				return usageError{err}
			}
			return comparisonError(t.runReplay(c.Context(), given, newReplayReport(filter, now)))
		},
	}
	c.Flags().StringVar(&since, "since", "7d", "only calls since this time: 15m, 2h or 7d ago, or RFC 3339")
	c.Flags().StringVar(&until, "until", "", "only calls before this time, in the same form")
	c.Flags().StringVar(&filter.Server, "server", "", "only this server")
	c.Flags().StringVar(&filter.Subject, "subject", "", "only this subject")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	for _, flag := range []string{"since", "until", "subject"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	return c
}

func (t *tool) runReplay(ctx context.Context, paths []string, r *replayReport) error {
	var documents []*policyv1.Document
	if len(paths) > 0 {
		var err error
		if documents, err = policy.ReadDocuments(paths); err != nil {
			return err
		}
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		r.progress = t.errOut
	}
	f, err := t.load()
	if err != nil {
		return err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answers matter
	gateway, done, err := t.gatewayClient()
	if err != nil {
		return err
	}
	defer done()
	return t.replayAndPrint(ctx, replayClients{policyv1.NewPolicyServiceClient(conn), gateway}, documents, r)
}

// replayClients contains the gRPC clients that a replay uses.
type replayClients struct {
	policy  policyv1.PolicyServiceClient
	gateway gatewayv1.GatewayServiceClient
}

// replayAndPrint replays the journal and prints the report. If ctx is canceled before all calls are read, it prints the
// results so far.
func (t *tool) replayAndPrint(ctx context.Context, clients replayClients, documents []*policyv1.Document, r *replayReport) error {
	err := r.replay(ctx, clients, documents)
	if err != nil && ctx.Err() == nil {
		return t.explainError(err)
	}
	if r.complete = err == nil; !r.complete && r.searched == nil {
		return errors.New("interrupted before any call was read")
	}
	if len(r.findings) == 0 || t.json() {
		if err := t.printReplay(r); err != nil {
			return err
		}
	}
	if len(r.findings) > 0 {
		return notLoading(r.findings)
	}
	return r.result()
}

// A replayConn is an open stream on which the policy service replays calls. It is canceled if the response to a request
// takes longer than requestTimeout.
type replayConn struct {
	stream  grpc.BidiStreamingClient[policyv1.ReplayDecisionsRequest, policyv1.ReplayDecisionsResponse]
	timeout *time.Timer
}

// errNoAnswer is the error of a replay if the policy service does not answer a request in time.
var errNoAnswer = errors.New("the policy service did not answer in time: try again, with a shorter time in --since")

// openReplay opens a replay stream. The stream is closed when ctx is done or the returned function is called.
func openReplay(ctx context.Context, client policyv1.PolicyServiceClient) (c *replayConn, end func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	c = &replayConn{timeout: time.AfterFunc(requestTimeout, func() { cancel(errNoAnswer) })}
	end = func() {
		c.timeout.Stop()
		cancel(nil)
	}
	if c.stream, err = client.ReplayDecisions(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// ask sends a request, and calls add with each response up to the last response to this request.
func (c *replayConn) ask(req *policyv1.ReplayDecisionsRequest, add func(*policyv1.ReplayDecisionsResponse)) error {
	c.timeout.Reset(requestTimeout)
	defer c.timeout.Stop()
	if err := c.stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for {
		resp, err := c.stream.Recv() // returns the server's error if Send has returned io.EOF
		if err != nil {
			if cause := context.Cause(c.stream.Context()); errors.Is(cause, errNoAnswer) {
				return cause
			}
			return err
		}
		add(resp)
		if resp.GetLast() {
			return nil
		}
	}
}

// replay reads the calls in the journal, newest first. It lets the policy service evaluate them, and adds the results
// to the report. After an error, the report contains the results so far.
func (r *replayReport) replay(ctx context.Context, clients replayClients, documents []*policyv1.Document) error {
	conn, end, err := openReplay(ctx, clients.policy)
	if err != nil {
		return err
	}
	defer end()
	defer r.sort()
	head := &policyv1.ReplayHead{Documents: documents}
	if err := conn.ask(&policyv1.ReplayDecisionsRequest{Part: &policyv1.ReplayDecisionsRequest_Head{Head: head}}, r.add); err != nil || len(r.findings) > 0 {
		return err
	}
	req, lastReport := &gatewayv1.ListDecisionsRequest{Filter: r.filter, PageSize: maxPage, WithArguments: true}, time.Now()
	for {
		page, err := listDecisionsPage(ctx, clients.gateway, req)
		if req.GetWithArguments() && status.Code(err) == codes.PermissionDenied { // the person is not an operator
			req.WithArguments = false
			page, err = listDecisionsPage(ctx, clients.gateway, req)
		}
		if err != nil {
			return err
		}
		for _, batch := range r.batches(page.GetRecords()) {
			if err := conn.ask(&policyv1.ReplayDecisionsRequest{Part: &policyv1.ReplayDecisionsRequest_Decisions{Decisions: batch}}, r.add); err != nil {
				return err
			}
		}
		if at := timeOrNil(page.GetSearched()); at != nil {
			r.searched = at
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return nil
		}
		if r.progress != nil && r.searched != nil && time.Since(lastReport) > progressInterval {
			lastReport = time.Now()
			fmt.Fprintf(r.progress, "sluice: replayed %s so far, back to %s\n", countOfCalls(r.calls()), localTime(*r.searched))
		}
	}
}

// toolsCall is the method of calls whose recorded arguments are replayed.
const toolsCall = "tools/call"

// addArguments copies the recorded arguments of a tool call from a record to the replayed call. It does so only if the
// record contains the arguments and no value in them was redacted.
func addArguments(one *policyv1.RecordedDecision, rec *gatewayv1.Record) {
	text := rec.GetRecordedArguments().GetArgumentsJson()
	if text == "" || rec.GetRecordedArguments().GetRedacted() || rec.GetMethod() != toolsCall {
		return
	}
	params, err := json.Marshal(map[string]any{"name": rec.GetTool(), "arguments": jsontext.Value(text)}, json.Deterministic(true))
	if err == nil { // otherwise the arguments count as not recorded
		one.Call.ParamsJson, one.ArgumentsKnown = string(params), true
	}
}

// batches divides records into requests of limited size. It omits calls on which the policy service made no decision at
// the time, and counts them in r.notDecided.
func (r *replayReport) batches(records []*gatewayv1.Record) (out []*policyv1.RecordedDecisions) {
	size := 0
	for _, rec := range records {
		call := recordedCall(rec)
		if call == nil || rec.GetPolicyRevision() == "" {
			r.notDecided[rec.GetCode()] += max(rec.GetCount(), 1)
			continue
		}
		one := &policyv1.RecordedDecision{
			Call: call.GetCall(), Subject: call.GetSubject(), Decision: recordedDecision(rec), Time: rec.GetTime(),
			Count: max(rec.GetCount(), 1), DecisionId: rec.GetDecisionId(),
		}
		addTokens(one.GetSubject(), rec.GetPrincipal())
		addArguments(one, rec)
		if size += proto.Size(one); len(out) == 0 || size > maxReplayBatch {
			out, size = append(out, new(policyv1.RecordedDecisions)), proto.Size(one)
		}
		last := out[len(out)-1]
		last.Decisions = append(last.Decisions, one)
	}
	return out
}
