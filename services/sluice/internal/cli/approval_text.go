package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const statePrefix = "APPROVAL_STATE_"

func stateNames() (out []string) {
	for n := int32(1); ; n++ {
		if _, ok := approvalv1.ApprovalState_name[n]; !ok {
			return out
		}
		out = append(out, enum.Name(approvalv1.ApprovalState(n)))
	}
}

func approvalColumns() []string {
	return []string{"ASKED", "STATE", "WHO", "WHAT", "MISSING", "UNTIL", "NOTE", "ID"}
}

func approvalCells(a *approvalv1.Approval) []string {
	until := a.GetDecideBefore()
	if a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_APPROVED {
		until = a.GetExecuteBefore()
	}
	if a.GetEnded() != nil {
		until = a.GetDeniedUntil()
	}
	return []string{
		timeOfDay(a.GetRequested()), enum.Name(a.GetState()), orDash(a.GetRequester().GetSubject()), safetext.CallName(a.GetServer(), a.GetMethod(), a.GetName()),
		strconv.Itoa(int(a.GetVotesMissing())), timeOfDay(until), approvalNote(a), a.GetId(),
	}
}

// approvalNote returns the content of the column NOTE, which says how the call was approved or what the grant allows.
// It returns "-" if there is no note.
func approvalNote(a *approvalv1.Approval) string {
	confirmed := func(v *approvalv1.Vote) bool {
		return v.GetChannel() == approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION && v.GetVerdict() == approvalv1.Verdict_VERDICT_APPROVE && v.GetVoidReason() == ""
	}
	switch g := a.GetGrant(); {
	case a.GetGrantedBy() != "":
		return "by grant " + a.GetGrantedBy()
	case slices.ContainsFunc(a.GetVotes(), confirmed):
		return "confirmed at the agent"
	case g.GetExpires() != nil:
		return fmt.Sprintf("grant, %d of %d used", g.GetUsed(), g.GetCalls())
	case g != nil:
		return fmt.Sprintf("for %d calls", g.GetCalls())
	default:
		return "-"
	}
}

// timeOfDay returns a time of day in the local time zone, or "-" for nil.
func timeOfDay(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Local().Format(time.TimeOnly)
}

// shownApproval is an approval with its complete view, which the service returns in parts. params contains the
// parameters of the call, joined from all parts. digest is the digest of the view.
type shownApproval struct {
	resp   *approvalv1.GetApprovalResponse
	params strings.Builder
	digest []byte
}

func (t *tool) readApproval(ctx context.Context, client approvalv1.ApprovalServiceClient, given string) (*shownApproval, error) {
	id, err := t.resolveApprovalID(ctx, client, given)
	if err != nil {
		return nil, err
	}
	resp, err := client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if status.Code(err) == codes.NotFound {
		return nil, fmt.Errorf("%w: %s prints the approvals that exist", t.explainError(err), t.listApprovalsCommand())
	}
	if err != nil {
		return nil, t.explainError(err)
	}
	s := &shownApproval{resp: resp}
	for v := resp.GetView(); v != nil; {
		s.params.WriteString(v.GetParams())
		s.digest = v.GetDigest()
		if v.GetNextOffset() == 0 {
			break
		}
		part, err := client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true, ViewOffset: v.GetNextOffset(), ViewVersion: v.GetVersion()})
		if err != nil {
			return nil, t.explainError(err)
		}
		v = part.GetView()
	}
	return s, nil
}

func (s *shownApproval) print(w io.Writer) {
	a := s.resp.GetApproval()
	_ = oneLine(w, "%-14s %s: %s", "approval", a.GetId(), enum.Name(a.GetState()))
	if until := a.GetDeniedUntil(); until != nil {
		_ = oneLine(w, "%-14s %s, even if the call is made again", "denied until", until.AsTime().UTC().Format(time.RFC3339))
	}
	if by := a.GetGrantedBy(); by != "" {
		_ = oneLine(w, "%-14s the grant of approval %s", "covered by", by)
	}
	if g := a.GetGrant(); g.GetExpires() != nil {
		_ = oneLine(w, "%-14s %d of %d calls used, until %s", "grant", g.GetUsed(), g.GetCalls(), g.GetExpires().AsTime().UTC().Format(time.RFC3339))
	}
	if v := s.resp.GetView(); v != nil {
		fmt.Fprint(w, safetext.Lines(safetext.Facts(v)))
		fmt.Fprintf(w, "\n%s\n\n", safetext.Lines(s.params.String()))
	}
	for _, m := range s.resp.GetHistory() {
		line := []string{timeOfDay(m.GetTime()), enum.Name(m.GetTo()), orDash(m.GetActor()), moveReason(m)}
		fmt.Fprintln(w, safetext.Line(strings.Join(slices.DeleteFunc(line, func(s string) bool { return s == "" }), "  ")))
	}
}

// moveReason returns the reason for a state transition. If a vote caused the transition, the comment in the vote
// follows. It omits the comment if the reason already contains it, as after a denial.
func moveReason(m *approvalv1.Move) string {
	reason, comment := m.GetReason(), m.GetVote().GetComment()
	if comment == "" || strings.Contains(reason, comment) {
		return reason
	}
	return reason + ": " + comment
}

// jsonOutput returns the approval for the JSON output. View and history are encoded as in sluice.approval.v1.
func (s *shownApproval) jsonOutput() any {
	out := struct {
		safetext.Approval
		ViewDigest string           `json:"viewDigest,omitzero"`
		Params     string           `json:"params,omitzero"`
		View       jsontext.Value   `json:"view,omitzero"`
		History    []jsontext.Value `json:"history"`
	}{Approval: safetext.ApprovalOf(s.resp.GetApproval()), ViewDigest: hex.EncodeToString(s.digest), Params: s.params.String(), History: []jsontext.Value{}}
	if v := s.resp.GetView(); v != nil {
		out.View = protoJSON(v)
	}
	for _, m := range s.resp.GetHistory() {
		out.History = append(out.History, protoJSON(m))
	}
	return out
}

func protoJSON(m proto.Message) jsontext.Value {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return jsontext.Value("null") // can't happen, because a received message can always be encoded
	}
	return raw
}

// isUnavailable reports whether a stream with the final error err ended because its service is unavailable. A stream
// without an error counts too.
func isUnavailable(err error) bool {
	code := status.Code(err)
	return err == nil || code == codes.Unavailable || code == codes.DeadlineExceeded
}
