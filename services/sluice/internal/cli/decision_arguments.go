package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

func (t *tool) printArguments(ctx context.Context, client gatewayv1.GatewayServiceClient, records []*gatewayv1.Record) error {
	if len(records) == 0 {
		return errors.New("the decision has no records")
	}
	resp, err := client.GetRecordedArguments(ctx, &gatewayv1.GetRecordedArgumentsRequest{Id: records[0].GetDecisionId()})
	if err != nil {
		return t.explainError(err)
	}
	text := jsontext.Value(resp.GetArgumentsJson())
	if err := text.Indent(jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("read the recorded arguments: %w", err)
	}
	fmt.Fprintln(t.out, safetext.VisibleLines(string(text)))
	if resp.GetRedacted() {
		fmt.Fprintln(t.errOut, "Values were replaced in these arguments: they differ from what the caller sent.")
	}
	return nil
}
