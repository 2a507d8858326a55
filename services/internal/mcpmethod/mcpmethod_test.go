package mcpmethod_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

func TestAll_ContainsEachMethodOnce(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^[a-z]+(/[a-zA-Z_]+)*$`)
	seen := make(map[string]bool)
	for _, method := range mcpmethod.All() {
		if seen[method] || !name.MatchString(method) {
			t.Errorf("%q is not the name of a method, or occurs twice", method)
		}
		seen[method] = true
	}
}

// A caller may modify the returned slices. This does not affect other callers.
func TestLists_AreNotShared(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]func() []string{"All": mcpmethod.All, "Notifications": mcpmethod.Notifications, "WithoutRule": mcpmethod.WithoutRule} {
		first := list()[0]
		list()[0] = "changed"
		if got := list()[0]; got != first {
			t.Errorf("%s returns %q after a caller has changed its result", name, got)
		}
	}
}

// A method that executes work on a server needs a rule. Such a method must not be in the list of methods that are
// forwarded without evaluation by the policy service.
func TestWithoutRule_ContainsOnlyMethodsOfTheProtocol(t *testing.T) {
	t.Parallel()
	for _, method := range mcpmethod.WithoutRule() {
		if !mcpmethod.IsProtocol(method) || !slices.Contains(mcpmethod.All(), method) {
			t.Errorf("%s needs no rule, and is not a method with which clients and servers learn about each other", method)
		}
	}
	for _, method := range []string{"tools/call", "prompts/get", "prompts/list", "resources/read", "resources/list", "sampling/createMessage", "elicitation/create", "roots/list", "tasks/get"} {
		if slices.Contains(mcpmethod.WithoutRule(), method) || slices.Contains(mcpmethod.Notifications(), method) {
			t.Errorf("%s needs no rule", method)
		}
	}
}

// Each notification is in exactly one of three groups: notifications that are forwarded unless a rule denies them,
// notifications that are forwarded without a rule, and notifications about tasks, which are not forwarded.
func TestNotifications_AreHandledInOneWay(t *testing.T) {
	t.Parallel()
	var tasks []string
	for _, method := range mcpmethod.All() {
		forwarded, exempt := slices.Contains(mcpmethod.Notifications(), method), slices.Contains(mcpmethod.WithoutRule(), method)
		switch {
		case forwarded && exempt:
			t.Errorf("%s is both forwarded by rule and without a rule", method)
		case forwarded && !mcpmethod.IsNotification(method):
			t.Errorf("%s is not a notification", method)
		case mcpmethod.IsNotification(method) && !forwarded && !exempt:
			tasks = append(tasks, method)
		}
	}
	if diff := cmp.Diff([]string{"notifications/tasks/status", "notifications/tasks"}, tasks); diff != "" {
		t.Errorf("the notifications that are not forwarded (-want +got):\n%s", diff)
	}
	for _, method := range mcpmethod.Notifications() {
		if !slices.Contains(mcpmethod.All(), method) {
			t.Errorf("%s is not a method of MCP", method)
		}
	}
}

func TestIsNotification_ReadsThePrefix(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		"notifications/message": true, "notifications/vendor/x": true, "notifications/": true, "notifications": false, "Notifications/message": false, "tools/call": false, "x/notifications/": false, "": false,
	} {
		if mcpmethod.IsNotification(method) != want {
			t.Errorf("%q: %t", method, !want)
		}
	}
}

func TestIsProtocol_TellsWorkFromLearning(t *testing.T) {
	t.Parallel()
	var work []string
	for _, method := range mcpmethod.All() {
		if !mcpmethod.IsProtocol(method) {
			work = append(work, method)
		}
	}
	want := []string{
		"tools/call", "prompts/get", "resources/read", "resources/subscribe", "resources/unsubscribe", "completion/complete",
		"tasks/get", "tasks/result", "tasks/cancel", "tasks/update", "sampling/createMessage", "elicitation/create",
	}
	if diff := cmp.Diff(want, work); diff != "" {
		t.Errorf("the methods that do work (-want +got):\n%s", diff)
	}
	for method, want := range map[string]bool{"vendor/list": true, "notifications/vendor": true, "vendor/run": false, "": false, "list": false} {
		if mcpmethod.IsProtocol(method) != want {
			t.Errorf("%q: %t", method, !want)
		}
	}
}
