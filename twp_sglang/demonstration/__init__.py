"""The demo: a real model, a real burst, and the window at work in the terminal.

One module a concern, in the order a run uses them:

settings      what to run, and a burst that fits the machine
model_cache   a folder that is whole or absent      smollm2   the model in it
server        launch_server as a child process
story         what has happened so far: answers, window, load
watcher       asks the server for its state         view      the story drawn with rich
screen        the view live in a terminal, or plain lines elsewhere
picture       the PNG of the step trace             run       all of it, in order
"""
