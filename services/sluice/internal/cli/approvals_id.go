package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

const (
	// minIDPrefix is the minimum number of characters of an id that a person enters.
	minIDPrefix = 8
	idPageSize  = 1000
)

func (t *tool) listApprovalsCommand() string { return t.command("approvals list --all") }

// resolveApprovalID returns the id of the only approval whose id begins with the text that a person has entered.
func (t *tool) resolveApprovalID(ctx context.Context, client approvalv1.ApprovalServiceClient, given string) (string, error) {
	switch _, err := uuid.Parse(given); {
	case err == nil:
		return given, nil
	case given == "":
		return "", usageError{fmt.Errorf("the id is empty: %s prints the ids", t.listApprovalsCommand())}
	case len(given) < minIDPrefix:
		return "", fmt.Errorf("the id %q is too short: give at least the first %d characters of an id; %s prints the ids", given, minIDPrefix, t.listApprovalsCommand())
	}
	found, err := t.idsWithPrefix(ctx, client, given)
	if err != nil {
		return "", err
	}
	return t.onlyID(found, given)
}

// onlyID returns the only element of found. It returns an error if there are none or several.
func (t *tool) onlyID(found []string, given string) (string, error) {
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no approval has an id that begins with %q: %s prints the ids", given, t.listApprovalsCommand())
	case 1:
		return found[0], nil
	default:
		return "", fmt.Errorf("%d approvals have an id that begins with %q: give more characters of the id; %s prints the ids", len(found), given, t.listApprovalsCommand())
	}
}

// idsWithPrefix returns the ids that begin with the given text. It searches all approvals that the person may see.
func (t *tool) idsWithPrefix(ctx context.Context, client approvalv1.ApprovalServiceClient, text string) (found []string, err error) {
	req := &approvalv1.ListApprovalsRequest{PageSize: idPageSize}
	for {
		resp, err := client.ListApprovals(ctx, req)
		if err != nil {
			return nil, t.explainError(err)
		}
		for _, a := range resp.GetApprovals() {
			if strings.HasPrefix(a.GetId(), strings.ToLower(text)) {
				found = append(found, a.GetId())
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return found, nil
		}
	}
}
