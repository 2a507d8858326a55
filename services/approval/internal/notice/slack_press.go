package notice

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"github.com/slack-go/slack"
	"github.com/slack-go/slack/socketmode"
	"golang.org/x/sync/errgroup"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

const (
	approveButton = "approve"
	denyButton    = "deny"
	// pressTimeout limits how long the vote of one button press takes. maxPresses limits how many presses are processed
	// concurrently. Slack requires an acknowledgement of each press within 3 s, so receivePresses acknowledges a press
	// before the press is processed.
	pressTimeout = 10 * time.Second
	maxPresses   = 8
	// maxEnvelope is the maximum size of a message from Slack, in bytes.
	maxEnvelope = 1 << 20
	// unmappedUser is the response to a Slack user who has no subject in the configuration.
	unmappedUser = "Nothing was decided: your Slack user is mapped to no subject of Sluice."
)

// Press is a vote that a person has cast by pressing a button.
type Press struct {
	// Tenant and Subject are the tenant and the subject that the configuration assigns to the Slack user.
	Tenant, Subject string
	// Approval is the id of the approval.
	Approval string
	// Verdict is the verdict of the button. ViewDigest is the digest of the view that the message showed.
	Verdict    approvalv1.Verdict
	ViewDigest []byte
}

// Voter casts the vote of a button press under the same rules as a vote that is cast with a token. It returns a
// sentence that tells the person the result.
type Voter func(context.Context, Press) (answer string)

// listen receives button presses until ctx is done. It reconnects after a failure.
func (c *slackChannel) listen(ctx context.Context) {
	for failures := int64(1); ctx.Err() == nil; failures++ {
		client := socketmode.New(c.api, socketmode.OptionReadLimit(maxEnvelope))
		group, inner := errgroup.WithContext(ctx)
		group.Go(func() error { return client.RunContext(inner) })
		group.Go(func() error { return c.receivePresses(inner, client) })
		err := group.Wait()
		if ctx.Err() != nil {
			return
		}
		c.deps.Log.ErrorContext(ctx, "slack refused the connection for button presses, so no press is received; the service connects again", "channel", c.Name, "error", withoutURL(err))
		select {
		case <-ctx.Done():
		case <-time.After(retryPause(failures)):
		}
	}
}

func (c *slackChannel) receivePresses(ctx context.Context, client *socketmode.Client) error {
	var presses errgroup.Group
	presses.SetLimit(maxPresses)
	defer func() { _ = presses.Wait() }() // no press returns an error
	for {
		var event socketmode.Event
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event = <-client.Events:
		}
		if failed, ok := event.Data.(*slack.ConnectionErrorEvent); ok {
			c.deps.Log.WarnContext(ctx, "slack is unavailable, so no button press is received; the service connects again", "channel", c.Name, "error", withoutURL(failed.ErrorObj))
		}
		if event.Request == nil || event.Request.EnvelopeID == "" {
			continue
		}
		if err := client.AckCtx(ctx, event.Request.EnvelopeID, nil); err != nil {
			return err
		}
		if callback, ok := event.Data.(slack.InteractionCallback); ok {
			presses.Go(func() error { c.handlePress(ctx, callback); return nil })
		}
	}
}

// handlePress casts the vote of a button press. It responds with a message that only the person who pressed the button
// can see.
func (c *slackChannel) handlePress(ctx context.Context, callback slack.InteractionCallback) {
	if callback.Type != slack.InteractionTypeBlockActions || callback.Channel.ID != c.Channel {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pressTimeout)
	defer cancel()
	for _, action := range callback.ActionCallback.BlockActions {
		answer := c.castVote(ctx, callback.User.ID, action)
		if answer == "" {
			continue
		}
		if _, err := c.api.PostEphemeralContext(ctx, c.Channel, callback.User.ID, slack.MsgOptionText(answer, true)); err != nil {
			c.deps.Log.WarnContext(ctx, "the answer to a button press was not sent; the vote is not affected", "channel", c.Name, "error", withoutURL(err))
		}
	}
}

// castVote casts the vote of a button press and returns the response for the person. It returns "" if the button is not
// from Sluice.
func (c *slackChannel) castVote(ctx context.Context, user string, action *slack.BlockAction) (answer string) {
	verdicts := map[string]approvalv1.Verdict{approveButton: approvalv1.Verdict_VERDICT_APPROVE, denyButton: approvalv1.Verdict_VERDICT_DENY}
	verdict, ok := verdicts[action.ActionID]
	id, shown, two := strings.Cut(action.Value, " ")
	digest, err := hex.DecodeString(shown)
	if !ok || !two || err != nil {
		return ""
	}
	subject, ok := c.People[user]
	if !ok {
		return unmappedUser
	}
	return c.deps.Vote(ctx, Press{Tenant: c.Tenant, Subject: subject, Approval: id, Verdict: verdict, ViewDigest: digest})
}
