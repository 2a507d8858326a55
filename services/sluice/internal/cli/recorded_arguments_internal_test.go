package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

func TestRecordedArguments_NamesTheKeyIfCopiesWereRemovedEarly(t *testing.T) {
	t.Parallel()
	if got := newRecordedArguments(nil); got != nil {
		t.Errorf("without copies: %v", got)
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	status := &gatewayv1.RecordedArgumentsStatus{Bytes: 3 << 19, MaxBytes: 256 << 20, Oldest: timestamppb.New(at), Retention: durationpb.New(7 * day)}
	if got := newRecordedArguments(status).String(); got != "1.5 of 256 MiB recorded, since "+localTime(at) {
		t.Error(got)
	}
	status.Bytes = 512
	if got := newRecordedArguments(status).String(); got != "less than 0.1 of 256 MiB recorded, since "+localTime(at) {
		t.Error(got)
	}
	status.RemovedEarly = timestamppb.New(at)
	if got := newRecordedArguments(status).String(); !strings.Contains(got, "younger than 7 days") || !strings.Contains(got, "journal.arguments.mib") {
		t.Error(got)
	}
}
