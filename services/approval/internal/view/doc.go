// Package view renders the content that a person must see before voting on a call. The content consists of facts about
// the call and of all its arguments. Characters that could hide content are shown as escapes.
package view
