// Package limits runs a real mesh with programs over stdio that try to use up the machine: tasks, memory, disk,
// inotify instances. Each attacker is bounded: it stops by itself at a few thousand tasks or some hundred MiB.
package limits
