package policy

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// These constants limit a replay.
const (
	// maxReplays limits how many replays can be open at the same time. Each person can have only one.
	maxReplays = 4
	// maxReplayTime limits the duration of a replay. maxReplayIdle limits how long the client can take to send the next
	// message.
	maxReplayTime, maxReplayIdle = time.Hour, 2 * time.Minute
	// maxReplayPart limits the size of a response in bytes. Further results are put in the next response.
	maxReplayPart = 1 << 20
)

var (
	errReplayDisorder = errors.New("a replay begins with one head, and each further message has records: send the head first, once")
	errReplayEnded    = errors.New("the replay took too long, or no message arrived for too long: begin it again, with a shorter period of time")
)

type replayStream = grpc.BidiStreamingServer[policyv1.ReplayDecisionsRequest, policyv1.ReplayDecisionsResponse]

// ReplayDecisions implements policyv1.PolicyServiceServer. It holds one of replaySlots while the stream is open. It
// also holds one of lintSlots while it processes a message. Therefore a slow client does not delay other people's work.
func (s *Service) ReplayDecisions(stream replayStream) error {
	ctx := stream.Context()
	if !mayReadDocuments(authn.CallerOf(ctx)) {
		return toStatus(errOtherTenant)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxReplayTime, errReplayEnded)
	defer cancel()
	done, err := s.replaySlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return toStatus(err)
	}
	defer done()
	messages := receiveReplay(ctx, stream)
	r, err := s.beginReplay(ctx, stream, messages)
	for err == nil && r != nil {
		err = s.replayNext(ctx, stream, messages, r)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return toStatus(err)
}

// receivedReplay is a message from the client, or the error that ended the stream.
type receivedReplay struct {
	req *policyv1.ReplayDecisionsRequest
	err error
}

// receiveReplay receives the messages of a stream in a goroutine until the stream ends or ctx is done. The stream's
// handler must not wait for this goroutine, because Recv may return only after the handler has returned.
func receiveReplay(ctx context.Context, stream replayStream) <-chan receivedReplay {
	out := make(chan receivedReplay)
	go func() {
		for {
			req, err := stream.Recv()
			select {
			case out <- receivedReplay{req, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// nextReplay waits for the next message from the client.
func nextReplay(ctx context.Context, messages <-chan receivedReplay) (*policyv1.ReplayDecisionsRequest, error) {
	idle := time.NewTimer(maxReplayIdle)
	defer idle.Stop()
	select {
	case m := <-messages:
		return m.req, m.err
	case <-idle.C:
		return nil, errReplayEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// beginReplay receives the first message, which is the head of the replay. It compiles the documents in the message and
// sends the response. If the documents can't be used, it returns a nil replayer.
func (s *Service) beginReplay(ctx context.Context, stream replayStream, messages <-chan receivedReplay) (*replayer, error) {
	req, err := nextReplay(ctx, messages)
	switch {
	case err != nil:
		return nil, err
	case req.GetHead() == nil:
		return nil, errReplayDisorder
	}
	active, err := s.current(ctx)
	switch {
	case err != nil:
		return nil, err
	case active == nil:
		return nil, errNoPolicy
	}
	documents := req.GetHead().GetDocuments()
	if len(documents) == 0 {
		documents = active.documents
	}
	set, findings, err := s.compileDraft(ctx, documents)
	if err != nil {
		return nil, err
	}
	resp := &policyv1.ReplayDecisionsResponse{Findings: findings, Last: true, Totals: new(policyv1.ReplayTotals)}
	if err := stream.Send(resp); err != nil || set == nil {
		return nil, err
	}
	return s.newReplayer(set, active), nil
}

// compileDraft compiles documents without running their tests. If the documents can't be used, it returns findings and
// no set.
func (s *Service) compileDraft(ctx context.Context, documents []*policyv1.Document) (*engine.Set, []*policyv1.Finding, error) {
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, nil, err
	}
	defer done()
	now := time.Now()
	parsed, problems := parseFor(documents, now)
	if len(problems) > 0 {
		return nil, problems, nil
	}
	set, err := engine.Compile(parsed, engine.Options{
		SessionCap: s.cfg.SessionCap, Times: engine.Times{Decide: s.cfg.Decide, Execute: s.cfg.Execute}, Observe: s.cfg.Observe, Now: now,
	})
	if err != nil {
		return nil, findings(err), nil
	}
	return set, nil, nil
}

// replayNext waits for records, evaluates them and sends the results. After the client has sent all records, replayNext
// returns [io.EOF].
func (s *Service) replayNext(ctx context.Context, stream replayStream, messages <-chan receivedReplay, r *replayer) error {
	req, err := nextReplay(ctx, messages)
	switch {
	case err != nil:
		return err
	case req.GetDecisions() == nil:
		return errReplayDisorder
	}
	results, err := s.replayBatch(ctx, r, req.GetDecisions().GetDecisions())
	if err != nil {
		return err
	}
	return sendReplay(stream, results, r.totals())
}

func (s *Service) replayBatch(ctx context.Context, r *replayer, records []*policyv1.RecordedDecision) (*replayResults, error) {
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	results := newReplayResults()
	for _, rec := range records {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := r.replay(rec, results); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// sendReplay sends results, in several responses if they are large.
func sendReplay(stream replayStream, results *replayResults, totals *policyv1.ReplayTotals) error {
	resp, size := new(policyv1.ReplayDecisionsResponse), 0
	add := func(item proto.Message) error {
		var err error
		if size += proto.Size(item); size > maxReplayPart {
			err = stream.Send(resp)
			resp, size = new(policyv1.ReplayDecisionsResponse), proto.Size(item)
		}
		return err
	}
	for _, flip := range results.flips {
		if err := add(flip); err != nil {
			return err
		}
		resp.Flips = append(resp.Flips, flip)
	}
	for _, unknown := range results.unknown {
		if err := add(unknown); err != nil {
			return err
		}
		resp.Unknown = append(resp.Unknown, unknown)
	}
	resp.Last, resp.Totals = true, totals
	return stream.Send(resp)
}
