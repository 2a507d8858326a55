package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// errNotRecorded means that no copy of a call's arguments was stored.
var errNotRecorded = errors.New("no arguments were recorded: the call had none, or was refused, " +
	"or neither its rule nor its server has `record: {arguments: redacted}`")

// GetRecordedArguments implements gatewayv1.GatewayServiceServer.
func (s *Service) GetRecordedArguments(ctx context.Context, req *gatewayv1.GetRecordedArgumentsRequest) (*gatewayv1.GetRecordedArgumentsResponse, error) {
	done, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	records, err := s.journal.Find(ctx, req.GetId())
	if err != nil {
		return nil, fmt.Errorf("find decision %s: %w", req.GetId(), err)
	}
	visible, isKnown := filter(ctx, nil), false
	for i := range records {
		if !visible(&records[i]) {
			continue
		}
		isKnown = true
		if recorded := records[i].Recorded; recorded != (journal.Recorded{}) {
			return s.recordedArguments(ctx, req.GetId(), recorded)
		}
	}
	if !isKnown {
		return nil, toStatus(errNoDecision)
	}
	return nil, toStatus(errNotRecorded)
}

func (s *Service) recordedArguments(ctx context.Context, id string, recorded journal.Recorded) (*gatewayv1.GetRecordedArgumentsResponse, error) {
	raw, err := s.arguments.Get(id, arguments.Copy{Digest: recorded.Digest, Place: recorded.Place})
	if err != nil {
		return nil, toStatus(err)
	}
	s.logRead(ctx, id, 1)
	return &gatewayv1.GetRecordedArgumentsResponse{ArgumentsJson: string(raw), Redacted: recorded.IsRedacted}, nil
}

// maxListedArguments is the maximum size, in bytes, of one call's arguments in a list of records. The list omits larger
// arguments.
const maxListedArguments = 256 << 10

var errOperatorRequired = errors.New("only operators may read recorded arguments: use the token of an operator")

// mayReadArguments reports whether a caller may read the recorded arguments of the calls in the caller's tenant.
func mayReadArguments(caller *authn.Caller) bool {
	return caller != nil && caller.Person.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
}

// addArguments adds the recorded arguments to a record if the arguments are not too large.
func (s *Service) addArguments(rec *gatewayv1.Record) {
	recorded := rec.GetRecordedArguments()
	if recorded == nil || recorded.GetBytes() > maxListedArguments {
		return
	}
	raw, err := s.arguments.Get(rec.GetDecisionId(), arguments.Copy{Digest: hex.EncodeToString(recorded.GetDigest()), Place: recorded.GetPlace()})
	if err == nil { // after an error, the arguments are omitted, and GetRecordedArguments returns the error
		recorded.ArgumentsJson = string(raw)
	}
}

// logArgumentsRead logs how many of the records contain arguments. It logs nothing if none of the records does.
func (s *Service) logArgumentsRead(ctx context.Context, records ...*gatewayv1.Record) {
	n, first := 0, ""
	for _, rec := range records {
		if rec.GetRecordedArguments().GetArgumentsJson() != "" {
			n, first = n+1, rec.GetDecisionId()
		}
	}
	if n > 0 {
		s.logRead(ctx, first, n)
	}
}

func (s *Service) logRead(ctx context.Context, oldest string, calls int) {
	reader := authn.CallerOf(ctx).Person
	s.deps.Log.InfoContext(ctx, "recorded arguments were read", "calls", calls, "decision_id", oldest, "tenant", reader.GetTenant(), "subject", reader.GetSubject(), "token", reader.GetTokenId())
}

// recordedArgumentsStatus returns the size, the limits and the age of the stored copies of call arguments. It returns
// nil if no copies are stored.
func (s *Service) recordedArgumentsStatus() *gatewayv1.RecordedArgumentsStatus {
	usage := s.arguments.Usage()
	if usage.Bytes == 0 {
		return nil
	}
	out := &gatewayv1.RecordedArgumentsStatus{
		Bytes: usage.Bytes, MaxBytes: usage.Max, Oldest: timestamppb.New(usage.Oldest), Retention: durationpb.New(usage.Age),
	}
	if !usage.RemovedEarly.IsZero() {
		out.RemovedEarly = timestamppb.New(usage.RemovedEarly)
	}
	return out
}

func (c *Config) arguments(dir *datadir.Dir, log *slog.Logger) arguments.Config {
	return arguments.Config{
		Dir: dir.Path("arguments"), Keys: filepath.Join(c.Data, "keys", "arguments"), Bytes: c.ArgumentsBytes,
		Share: c.JournalShare, Age: c.ArgumentsAge, Sync: c.SyncAlways, Log: log,
	}
}

// argumentsFault returns a sentence that says why call arguments can't be recorded. The sentence contains no file
// names.
func argumentsFault(err error) string {
	why := "the log of the gateway has the reason"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		why = errno.Error()
	}
	return "the arguments of calls can't be recorded (" + why + "): calls are refused if their server or a rule has `record`; " +
		"free space on the disk of DATA/gateway/arguments, or make it and DATA/keys/arguments writable"
}
